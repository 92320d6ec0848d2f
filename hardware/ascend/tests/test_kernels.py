"""The kernels on the NPU against the reference on the CPU: that torch_npu's operators run, and what is declined."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trunnion.ops.registry import OPERATORS

simulator = pytest.importorskip("ascend_simulator")
from trunnion_ascend.float8 import refused_operators  # noqa: E402
from trunnion_ascend.hardware import AscendHardware  # noqa: E402
from trunnion_ascend.kernels import kernels, why_not  # noqa: E402
from trunnion_ascend.soc import SOCS, soc_of  # noqa: E402

A2 = soc_of("Ascend910B3")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3}
FLOATS = tuple(TOLERANCE)
HALVES = (torch.bfloat16, torch.float16)
Arguments = list[Any]


@pytest.fixture(scope="module", autouse=True)
def device() -> torch.device:
    return AscendHardware().initialize(0)


@pytest.fixture(autouse=True)
def fresh_counts() -> Iterator[None]:
    torch.manual_seed(0)
    OPERATORS.reset_declined()
    yield
    OPERATORS.reset_declined()


def on(value: object, device: torch.device) -> object:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def compare(name: str, arguments: Arguments, device: torch.device, tolerance: float) -> tuple[torch.Tensor, ...]:
    """Run an operator by torch's dispatcher and by its reference; shapes, dtypes, values, and memory without gaps."""
    with torch.inference_mode():
        expected = OPERATORS.reference(name)(*arguments)
        found = getattr(torch.ops.trunnion, name)(*(on(value, device) for value in arguments))
    expected, found = (value if isinstance(value, tuple) else (value,) for value in (expected, found))
    for want, got in zip(expected, found, strict=True):
        assert got.is_contiguous() or not want.is_contiguous()
        torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance)
    return found


def rope_table(rotary_dim: int) -> torch.Tensor:
    angles = torch.arange(50)[:, None] * torch.rand(rotary_dim // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def positions(*shape: int) -> torch.Tensor:
    return torch.randint(0, 50, shape, dtype=torch.int32)


def heads(rows: int, dtype: torch.dtype, size: int) -> Arguments:
    """Queries and keys as a model has them: parts of one row, so that neighbouring heads are, and tokens are not."""
    return [
        part.unflatten(-1, (-1, size)) for part in torch.randn(rows, 5 * size).to(dtype).split((4 * size, size), -1)
    ]


def scores(rows: int, experts: int) -> torch.Tensor:
    """No two close enough for rounding to choose."""
    return torch.rand(rows, experts).argsort(-1).float() * 0.13


def routed(rows: int, experts: int, choices: int) -> Arguments:
    """The last expert gets no token."""
    weights = torch.rand(rows, choices)
    return [weights, torch.rand(rows, experts - 1).argsort(-1)[:, :choices].contiguous()]


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=torch.int8)


def scales(*shape: int) -> torch.Tensor:
    """Each channel's is its own by far."""
    return torch.rand(*shape) * 0.003 + 0.0005


def experts(dtype: torch.dtype, rows: int) -> Arguments:
    shapes = (rows, 32), (6, 48, 32), (6, 32, 24)
    x, w13, w2 = ((torch.randn(*shape) * factor).to(dtype) for shape, factor in zip(shapes, (1, 0.2, 0.3), strict=True))
    return [x, w13, w2, *routed(rows, 6, 3)]


def biased_experts(dtype: torch.dtype, rows: int) -> Arguments:
    return [*experts(dtype, rows), torch.randn(6, 48).to(dtype), torch.randn(6, 32).to(dtype)]


def clamped_experts(dtype: torch.dtype, rows: int) -> Arguments:
    """Of a rank that does not add the bias of the last product."""
    return [*experts(dtype, rows), torch.randn(6, 48).to(dtype), None, 1.702, 0.6]


def one_expert() -> Arguments:
    return [torch.randn(1, 8, 8), torch.randn(1, 8, 4)]


def int8_experts(dtype: torch.dtype, rows: int) -> Arguments:
    weights = codes(6, 48, 32), scales(6, 48), codes(6, 32, 24), scales(6, 32)
    return [torch.randn(rows, 32).to(dtype), *weights, *routed(rows, 6, 3)]


def int8_linear(dtype: torch.dtype, rows: int, *, static: bool, bias: bool) -> Arguments:
    """Only large values are beyond the static scale: the least that the operator makes is -128, not -127."""
    x = torch.randn(2, rows, 40).clamp(min=-2.0).to(dtype)
    input_scale = torch.tensor([2.0 / 127]) if static else None
    return [x, codes(56, 40), scales(56), input_scale, torch.randn(56).to(dtype) if bias else None]


CASES: dict[str, tuple[str, str, tuple[torch.dtype, ...], Callable[[torch.dtype, int], Arguments]]] = {
    "rms_norm": (
        "rms_norm", "aclnnRmsNorm", FLOATS,
        lambda dtype, rows: [torch.randn(rows, 65).to(dtype), torch.rand(65).to(dtype), 0.3, False],
    ),
    "rms_norm-strided": (
        "rms_norm", "aclnnRmsNorm", FLOATS,
        lambda dtype, rows: [torch.randn(rows, 3, 128).to(dtype)[..., :33], torch.rand(33).to(dtype), 1e-6, False],
    ),
    "rms_norm-unit-offset": (
        "rms_norm", "aclnnGemmaRmsNorm", FLOATS,
        lambda dtype, rows: [torch.randn(rows, 65).to(dtype), torch.rand(65).to(dtype), 0.3, True],
    ),
    "fused_add_rms_norm": (
        "fused_add_rms_norm", "aclnnAddRmsNorm", FLOATS,
        lambda dtype, rows: [*torch.randn(2, rows, 65).to(dtype), torch.rand(65).to(dtype), 0.3, False],
    ),
    "fused_add_rms_norm-unit-offset": (
        "fused_add_rms_norm", "aclnnGemmaRmsNorm", FLOATS,
        lambda dtype, rows: [*torch.randn(2, rows, 65).to(dtype), torch.rand(65).to(dtype), 0.3, True],
    ),
    "rms_norm_gated": (
        "rms_norm_gated", "aclnnRmsNorm", FLOATS,
        lambda dtype, rows: [*torch.randn(2, rows, 3, 65).to(dtype), torch.rand(65).to(dtype), 0.3],
    ),
    "silu_and_mul": (
        "silu_and_mul", "aclnnSwiGlu", FLOATS, lambda dtype, rows: [torch.randn(rows, 126).to(dtype)],
    ),
    "silu_and_mul-strided": (
        "silu_and_mul", "aclnnSwiGlu", FLOATS, lambda dtype, rows: [torch.randn(rows, 2, 99).to(dtype)[..., :66]],
    ),
    "gelu_tanh_and_mul": (
        "gelu_tanh_and_mul", "aclnnGeGluV3", FLOATS, lambda dtype, rows: [torch.randn(rows, 126).to(dtype)],
    ),
    "rotary": (
        "rotary_embedding", "aclnnRotaryPositionEmbedding", FLOATS,
        lambda dtype, rows: [*heads(rows, dtype, 32), positions(rows), rope_table(32), False],
    ),
    "rotary-partial": (
        "rotary_embedding", "aclnnRotaryPositionEmbedding", FLOATS,
        lambda dtype, rows: [*heads(rows, dtype, 32), positions(rows), rope_table(10), False],
    ),
    "rotary-interleaved-partial": (
        "rotary_embedding", "aclnnRotaryPositionEmbedding", FLOATS,
        lambda dtype, rows: [*heads(rows, dtype, 32), positions(rows), rope_table(10), True],
    ),
    "mrope": (
        "mrope_embedding", "aclnnRotaryPositionEmbedding", FLOATS,
        lambda dtype, rows: [*heads(rows, dtype, 32), positions(rows, 3), rope_table(32), [2, 3, 4, 1, 3, 3]],
    ),
    "topk": ("topk_softmax", "aclnnMoeGatingTopKSoftmax", FLOATS, lambda dtype, rows: [scores(rows, 9), 3, False]),
    "topk-renormalised": (
        "topk_softmax", "aclnnMoeGatingTopKSoftmax", FLOATS, lambda dtype, rows: [scores(rows, 9), 3, True],
    ),
    "topk-grouped": (
        "grouped_topk", "aclnnMoeGatingTopK", FLOATS, lambda dtype, rows: [scores(rows, 20), 5, 5, 2, False],
    ),
    "topk-grouped-renormalised": (
        "grouped_topk", "aclnnMoeGatingTopK", FLOATS, lambda dtype, rows: [scores(rows, 12), 3, 4, 1, True],
    ),
    "topk-biased": (
        "biased_grouped_topk", "aclnnMoeGatingTopK", FLOATS,
        lambda dtype, rows: [scores(rows, 20), torch.randn(20), 5, 5, 2, False],
    ),
    "topk-biased-renormalised": (
        "biased_grouped_topk", "aclnnMoeGatingTopK", FLOATS,
        lambda dtype, rows: [scores(rows, 12), torch.randn(12), 3, 4, 1, True],
    ),
    "topk-biased-no-groups": (
        "biased_grouped_topk", "aclnnMoeGatingTopK", FLOATS,
        lambda dtype, rows: [scores(rows, 12), torch.randn(12), 3, 1, 1, True],
    ),
    "experts": ("fused_experts", "aclnnGroupedMatmulV5", FLOATS, experts),
    "experts-biased": ("fused_experts", "aclnnGroupedMatmulV5", FLOATS, biased_experts),
    "experts-clamped": ("fused_experts", "aclnnClippedSwiglu", FLOATS, clamped_experts),
    "int8": (
        "w8a8_linear", "aclnnQuantMatmulV5", HALVES,
        lambda dtype, rows: int8_linear(dtype, rows, static=False, bias=True),
    ),
    "int8-static": (
        "w8a8_linear", "aclnnQuantMatmulV5", HALVES,
        lambda dtype, rows: int8_linear(dtype, rows, static=True, bias=True),
    ),
    "int8-no-bias": (
        "w8a8_linear", "aclnnQuantMatmulV5", HALVES,
        lambda dtype, rows: int8_linear(dtype, rows, static=False, bias=False),
    ),
    "int8-experts": ("w8a8_experts", "aclnnGroupedMatmulV5", HALVES, int8_experts),
}  # fmt: skip
"""Operator, what CANN calls the one behind it, dtypes, and arguments by dtype and rows."""

RUNS = [
    pytest.param(*case[:2], case[3], dtype, rows, id=f"{name}-{str(dtype).removeprefix('torch.')}-{rows}")
    for name, case in CASES.items()
    for dtype in case[2]
    for rows in (0, 1, 63)
]


def test_every_kernel_has_a_case() -> None:
    assert {case[0] for case in CASES.values()} == set(kernels(A2)) - set(refused_operators(A2))


@pytest.mark.parametrize(("name", "operator", "build", "dtype", "rows"), RUNS)
def test_an_operator_runs_and_equals_the_reference(
    name: str,
    operator: str,
    build: Callable[[torch.dtype, int], Arguments],
    dtype: torch.dtype,
    rows: int,
    device: torch.device,
) -> None:
    calls = simulator.simulation().calls
    ran = calls[operator]
    compare(name, build(dtype, rows), device, TOLERANCE[dtype])
    assert OPERATORS.declined() == {}
    assert (calls[operator] > ran) == (rows > 0), f"{operator} did not run"


BF16, F32 = torch.bfloat16, torch.float32
DECLINED: dict[str, tuple[str, Callable[[], Arguments], str]] = {
    "a weight of another dtype": (
        "rms_norm", lambda: [torch.randn(3, 8), torch.rand(8).double(), 1e-6, False], "a weight of torch.float64",
    ),
    "a single row": ("rms_norm", lambda: [torch.randn(8), torch.rand(8), 1e-6, False], "rows in 1 dimensions"),
    "a broadcast residual": (
        "fused_add_rms_norm", lambda: [torch.randn(3, 8), torch.randn(8), torch.rand(8), 1e-6, False],
        "a residual of another dtype or shape",
    ),
    "float64": ("silu_and_mul", lambda: [torch.randn(3, 8).double()], "not torch.float64"),
    "wide rotation": (
        "rotary_embedding",
        lambda: [torch.randn(2, 1, 896), torch.randn(2, 1, 896), positions(2), rope_table(896), False],
        "896 rotated features",
    ),
    "small groups": ("grouped_topk", lambda: [scores(3, 8), 3, 4, 2, False], "groups of 2 experts"),
    "small groups with a bias": (
        "biased_grouped_topk", lambda: [scores(3, 8), torch.randn(8), 3, 4, 2, False], "groups of 2 experts",
    ),
    "many groups": ("grouped_topk", lambda: [scores(1, 300), 3, 100, 2, False], "300 experts in 100 groups"),
    "one expert": (
        "fused_experts",
        lambda: [torch.randn(3, 8), *one_expert(), torch.ones(3, 1), torch.zeros(3, 1).long()],
        "1 experts",
    ),
    "one expert with biases and a limit": (
        "fused_experts",
        lambda: [
            torch.randn(3, 8), *one_expert(), torch.ones(3, 1), torch.zeros(3, 1).long(), torch.randn(1, 8),
            torch.randn(1, 8), 1.3, 0.5,
        ],
        "1 experts",
    ),
    "int8 in float32": (
        "w8a8_linear", lambda: [torch.randn(3, 8), codes(4, 8), scales(4), None, None], "not in torch.float32",
    ),
    "int8 experts in float32": ("w8a8_experts", lambda: int8_experts(F32, 3), "not in torch.float32"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "build", "reason"), DECLINED.values(), ids=DECLINED)
def test_what_operators_refuse_is_declined_with_the_reason(
    name: str, build: Callable[[], Arguments], reason: str, device: torch.device
) -> None:
    compare(name, build(), device, 3e-2)
    ((declined, why),) = OPERATORS.declined()
    assert declined == name and reason in why


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["int8", "int8-static", "int8-experts", "experts", "experts-clamped"])
def test_weights_may_lie_fractal_and_transposed(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """As methods lay them out: the same results, by the operator for such weights."""
    import torch_npu

    operator, _, _, build = CASES[name]
    arguments = [on(value, device) for value in build(dtype, 7)]
    expected = getattr(torch.ops.trunnion, operator)(*arguments)
    calls = simulator.simulation().calls
    before = calls.copy()
    torch.npu.config.allow_internal_format = True
    for index in (1, 3) if operator == "w8a8_experts" else (1, 2) if operator == "fused_experts" else (1,):
        matrix = arguments[index].transpose(-1, -2).contiguous()
        arguments[index] = torch_npu.npu_format_cast(matrix, 29).transpose(-1, -2)
    torch.npu.config.allow_internal_format = False
    assert torch.equal(getattr(torch.ops.trunnion, operator)(*arguments), expected)
    assert any(name.endswith("WeightNz") for name in calls - before)


@pytest.mark.parametrize("name", CASES)
def test_kernels_trace_without_a_device(name: str, device: torch.device) -> None:
    """Under FakeTensor, by what torch_npu registers for tensors without data: the shapes and dtypes of the results."""
    operator, _, dtypes, build = CASES[name]
    arguments = build(dtypes[0], 5)
    expected = OPERATORS.reference(operator)(*arguments)
    mode = FakeTensorMode()
    moved = (on(value, device) for value in arguments)
    faked = [mode.from_tensor(value) if isinstance(value, torch.Tensor) else value for value in moved]
    with mode:
        found = kernels(A2)[operator](*faked)
    for want, got in zip(
        *(value if isinstance(value, tuple) else (value,) for value in (expected, found)), strict=True
    ):
        assert (got.shape, got.dtype, got.device.type) == (want.shape, want.dtype, "npu")


def test_what_a_chip_has_no_operator_for_is_not_registered() -> None:
    """And the report says why."""
    small = soc_of("Ascend310P3")
    assert set(kernels(A2)) - set(kernels(small)) == {
        "rotary_embedding", "mrope_embedding", "topk_softmax", "grouped_topk", "biased_grouped_topk", "fused_experts",
        "w8a8_linear", "w8a8_experts",
    }  # fmt: skip
    assert "310P" in why_not(small)["w8a8_experts"]
    for soc in SOCS:
        assert not set(kernels(soc)) & set(why_not(soc))
