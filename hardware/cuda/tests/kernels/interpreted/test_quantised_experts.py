"""Experts of 8 bits in the interpreter: against the reference, and against float64 within what rounding can do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from trunnion.ops import quantised, registry
from trunnion_cuda.kernels import quantised_experts
from trunnion_cuda.kernels.tuning import Config

INT8, FP8 = torch.int8, torch.float8_e4m3fn
DTYPES = pytest.mark.parametrize("dtype", [INT8, FP8], ids=["int8", "fp8"])
SHAPES = pytest.mark.parametrize(
    ("num_tokens", "experts", "hidden", "inner", "top_k"),
    [(1, 5, 37, 40, 2), (23, 3, 130, 66, 3), (9, 33, 64, 96, 1), (0, 4, 32, 32, 2)],
    ids=str,
)
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}
Randn = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def a_late_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that multiplies e4m3: the interpreter has no device to ask."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


@dataclass(frozen=True)
class Experts:
    """What the operators take; no two scales are alike."""

    x: torch.Tensor
    w13: torch.Tensor
    w13_scale: torch.Tensor
    w2: torch.Tensor
    w2_scale: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor
    block: tuple[int, int] | None
    """Rows of w13 and columns of w2 that share a scale, or None: a scale per row."""

    @property
    def name(self) -> str:
        return "w8a8_experts" if self.block is None else "block_fp8_experts"

    @property
    def args(self) -> tuple:
        tensors = self.x, self.w13, self.w13_scale, self.w2, self.w2_scale, self.weights, self.ids
        return *tensors, *(self.block or ())

    def kernel(self) -> torch.Tensor:
        return getattr(quantised_experts, self.name)(*self.args)

    def reference(self) -> torch.Tensor:
        return registry.OPERATORS.reference(self.name)(*self.args)

    def dense(self) -> tuple[torch.Tensor, torch.Tensor]:
        """w13 and w2 in float64, exactly."""
        if self.block is None:
            pairs = (self.w13, self.w13_scale), (self.w2, self.w2_scale)
            return tuple(weight.double() * scale.double().unsqueeze(-1) for weight, scale in pairs)
        rows, columns = self.block
        return _spread(self.w13, self.w13_scale, rows, 128), _spread(self.w2, self.w2_scale, 128, columns)


def _spread(weight: torch.Tensor, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    spread = scale.double().repeat_interleave(rows, 1).repeat_interleave(columns, 2)
    return weight.double() * spread[:, : weight.shape[1], : weight.shape[2]]


def make(
    randn: Randn,
    sizes: tuple[int, int, int, int, int],
    dtype: torch.dtype,
    block: tuple[int, int] | None = None,
    of: torch.dtype = torch.float32,
) -> Experts:
    num_tokens, experts, hidden, inner, top_k = sizes
    rows, columns = block or (1, 0)
    w13, w2 = ((40 * randn(experts, *size)).to(dtype) for size in ((2 * inner, hidden), (hidden, inner)))
    shape13 = (2 * inner,) if block is None else (-(-2 * inner // rows), -(-hidden // 128))
    shape2 = (hidden,) if block is None else (-(-hidden // 128), -(-inner // columns))
    scales = (torch.exp(randn(experts, *shape)) * 0.002 for shape in (shape13, shape2))
    routing = registry.OPERATORS.reference("topk_softmax")(randn(num_tokens, experts), top_k, False)
    x = randn(num_tokens, hidden, dtype=of)
    return Experts(x, w13, next(scales), w2, next(scales), *routing, block)


@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@SHAPES
@DTYPES
def test_scales_per_row(
    randn: Randn,
    dtype: torch.dtype,
    num_tokens: int,
    experts: int,
    hidden: int,
    inner: int,
    top_k: int,
    of: torch.dtype,
) -> None:
    given = make(randn, (num_tokens, experts, hidden, inner, top_k), dtype, of=of)
    got = given.kernel()
    assert got.dtype == of and not registry.declined()
    torch.testing.assert_close(got, given.reference(), **CLOSE[of])


@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("block", [(128, 128), (16, 32)], ids=str)
@SHAPES
def test_scales_per_block(
    randn: Randn,
    num_tokens: int,
    experts: int,
    hidden: int,
    inner: int,
    top_k: int,
    block: tuple[int, int],
    of: torch.dtype,
) -> None:
    """Last blocks are partial ones; a block of 128 rows holds the last of gate and the first of up."""
    given = make(randn, (num_tokens, experts, hidden, inner, top_k), FP8, block, of)
    got = given.kernel()
    assert got.dtype == of and not registry.declined()
    torch.testing.assert_close(got, given.reference(), **CLOSE[of])


@DTYPES
def test_one_scale_for_a_tensor(randn: Randn, dtype: torch.dtype) -> None:
    """Loaded as the same scale for each row, of gate and of up."""
    given = make(randn, (5, 3, 48, 32, 2), dtype)
    given.w13_scale[:, :32], given.w13_scale[:, 32:], given.w2_scale[:] = 0.002, 0.004, 0.003
    torch.testing.assert_close(given.kernel(), given.reference(), **CLOSE[torch.float32])


@pytest.mark.parametrize(
    ("dtype", "block"), [(INT8, None), (FP8, None), (FP8, (64, 32))], ids=["int8", "fp8", "fp8-blocks"]
)
def test_float64_is_as_near_as_rounding_lets_it(
    randn: Randn, dtype: torch.dtype, block: tuple[int, int] | None
) -> None:
    """Tokens lose nothing when they are quantised; what lies between the products does."""
    given = make(randn, (17, 5, 150, 70, 2), dtype, block)
    codes = (40 * randn(17, 150)).to(dtype).float()
    codes[:, ::128] = quantised.LARGEST[dtype]
    given.x.copy_(codes / 64)
    got, (wanted, bound) = given.kernel(), exact_and_bound(given, dtype)
    ratio = (got.double() - wanted).abs() / bound
    assert ratio.max() <= 1
    # The bound means something: it is small beside what is computed, and the error is not lost in it.
    assert 2 * bound.median() < wanted.abs().median() and ratio.max() > 0.1


def exact_and_bound(given: Experts, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What float64 makes of x and the dense weights, and how far the operator can be from it, [T, H] each.

    Sums of n products in float32 are off by at most `n 2^-24 |W| |x|` (Higham, Accuracy and Stability, 3.1), with some
    more for the scales. `|silu'| < 1.1`, so that errors g and u of gate and up make their product off by
    `(|silu(gate)| + 1.1 g)(|up| + u) - |silu(gate)| |up|`. Quantisation adds its own, and all of it goes through |W|.
    """
    (w13, w2), x = given.dense(), given.x.double()
    lost13, lost2 = ((w.shape[2] + 8) * 2.0**-24 for w in (w13, w2))
    group = None if given.block is None else given.block[1]
    wanted, bound = torch.zeros_like(x), torch.zeros_like(x)
    for choice in range(given.ids.shape[1]):
        for token, expert in enumerate(given.ids[:, choice].tolist()):
            gate, up = (w13[expert] @ x[token]).chunk(2)
            of_gate, of_up = (lost13 * w13[expert].abs() @ x[token].abs()).chunk(2)
            opened = F.silu(gate)
            error = (opened.abs() + 1.1 * of_gate) * (up.abs() + of_up) - (opened * up).abs()
            largest = (opened * up).abs() + error
            error = error + rounding(largest, dtype, group)
            weight = given.weights[token, choice].double()
            wanted[token] += weight * (w2[expert] @ (opened * up))
            bound[token] += weight * (w2[expert].abs() @ (error + lost2 * largest))
    return wanted, bound


def rounding(largest: torch.Tensor, dtype: torch.dtype, group: int | None) -> torch.Tensor:
    """How far quantised values may be from what is quantised, which is at most `largest`, [K]."""
    (size,), group = largest.shape, group or largest.shape[0]
    scale = F.pad(largest, (0, -size % group)).unflatten(0, (-1, group)).amax(-1) / quantised.LARGEST[dtype]
    scale = scale.repeat_interleave(group)[:size]
    # e4m3: half of the last of three bits behind the point; below 2 ** -6 steps are of 2 ** -9.
    return scale / 2 if dtype == INT8 else torch.maximum(largest / 16, scale * 2.0**-10)


def test_rows_of_nan_and_absent_experts_reach_no_other_row(randn: Randn) -> None:
    """A padding row may hold anything; an id that no expert here has (another rank's) adds nothing."""
    given = make(randn, (6, 4, 40, 33, 2), INT8)
    given.x[5] = float("nan")
    given.ids[2, 1], given.ids[3, 0] = -1, 9
    got, wanted = given.kernel(), given.reference()
    torch.testing.assert_close(got[:5], wanted[:5], **CLOSE[torch.float32])
    assert got[5].isnan().all()


@pytest.mark.parametrize("block", [None, (16, 32)], ids=["rows", "blocks"])
def test_an_expert_of_nan_that_nobody_chose_reaches_nobody(randn: Randn, block: tuple[int, int] | None) -> None:
    """Its weights and scales lie between others', whose last blocks are cut short."""
    given = make(randn, (5, 3, 40, 40, 2), FP8, block)
    given.ids[:] = torch.tensor([0, 2])
    wanted = given.reference()
    for tensor in (given.w13.view(torch.uint8), given.w2.view(torch.uint8)):
        tensor[1] = 0x7F
    given.w13_scale[1], given.w2_scale[1] = float("nan"), float("nan")
    torch.testing.assert_close(given.kernel(), wanted, **CLOSE[torch.float32])


@pytest.mark.nightly
@pytest.mark.parametrize("block", [None, (16, 32)], ids=["rows", "blocks"])
@pytest.mark.parametrize("config", quantised_experts.SPACE.configs, ids=str)
def test_every_configuration(
    randn: Randn, config: Config, block: tuple[int, int] | None, force_configuration: Callable[..., None]
) -> None:
    """With more rows than a block has for one expert, and none for another."""
    force_configuration(quantised_experts, config)
    given = make(randn, (140, 3, 72, 70, 1), FP8, block)
    given.ids[:] = torch.where(given.ids == 1, 2, given.ids)
    torch.testing.assert_close(given.kernel(), given.reference(), **CLOSE[torch.float32])


def test_what_the_kernel_cannot_take_is_declined_with_a_reason(randn: Randn, monkeypatch: pytest.MonkeyPatch) -> None:
    given = make(randn, (3, 4, 32, 32, 2), FP8, (32, 32))
    wanted = given.reference()
    strided = Experts(*given.args[:6], given.ids.t().contiguous().t(), given.block)
    assert torch.equal(strided.kernel(), wanted)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert torch.equal(given.kernel(), wanted)
    assert set(registry.declined()) == {
        ("block_fp8_experts", "strided routing"),
        ("block_fp8_experts", "float8_e4m3fn before compute capability 8.9"),
    }
