"""Norms in the interpreter against the reference: odd sizes, strided heads, no rows, quantised results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trunnion.ops import registry
from trunnion.ops.quantised import LARGEST, TINY
from trunnion_cuda.kernels import norm

REFERENCE = registry.OPERATORS.reference
EPS = 1e-6
CLOSE = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2e-2, "atol": 1e-2}}
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
OFFSET = pytest.mark.parametrize("unit_offset", [False, True], ids=["llama", "gemma"])
Randn = Callable[..., torch.Tensor]


@DTYPES
@OFFSET
@pytest.mark.parametrize("shape", [(5, 1), (3, 7), (9, 63), (2, 1000), (0, 16), (2, 3, 24), (40,)], ids=str)
def test_rms_norm(randn: Randn, shape: tuple[int, ...], dtype: torch.dtype, unit_offset: bool) -> None:
    x, weight = 30 * randn(*shape, dtype=dtype), randn(shape[-1], dtype=dtype)
    got = norm.rms_norm(x, weight, EPS, unit_offset)
    torch.testing.assert_close(got, REFERENCE("rms_norm")(x, weight, EPS, unit_offset), **CLOSE[dtype])


@DTYPES
@OFFSET
@pytest.mark.parametrize("shape", [(1, 1), (7, 63), (2, 1000), (0, 8)], ids=str)
def test_fused_add_rms_norm(randn: Randn, shape: tuple[int, ...], dtype: torch.dtype, unit_offset: bool) -> None:
    x, residual, weight = randn(*shape, dtype=dtype), 9 * randn(*shape, dtype=dtype), randn(shape[-1], dtype=dtype)
    before = x.clone(), residual.clone()
    got = norm.fused_add_rms_norm(x, residual, weight, EPS, unit_offset)
    want = REFERENCE("fused_add_rms_norm")(x, residual, weight, EPS, unit_offset)
    torch.testing.assert_close(got[0], want[0], **CLOSE[dtype])
    assert torch.equal(got[1], want[1]) and torch.equal(x, before[0]) and torch.equal(residual, before[1])


@DTYPES
def test_heads_that_are_views(randn: Randn, dtype: torch.dtype) -> None:
    q = randn(5, 3 * 4 * 10, dtype=dtype)[:, 40:80].unflatten(-1, (4, 10))
    weight = randn(10, dtype=dtype)
    assert not q.is_contiguous()
    torch.testing.assert_close(
        norm.rms_norm(q, weight, EPS, False), REFERENCE("rms_norm")(q, weight, EPS, False), **CLOSE[dtype]
    )
    gate = randn(5, 4, 20, dtype=dtype)[..., :10]
    want = REFERENCE("rms_norm_gated")(q, gate, weight, EPS)
    torch.testing.assert_close(norm.rms_norm_gated(q, gate, weight, EPS), want, **CLOSE[dtype])


def test_a_row_of_nan_stays_in_its_row(randn: Randn) -> None:
    x, weight = randn(5, 12), randn(12)
    x[1] = float("nan")
    got = norm.rms_norm(x, weight, EPS, False)
    assert got[1].isnan().all() and got[[0, 2, 3, 4]].isfinite().all()


@pytest.mark.parametrize("quantised", [torch.int8, torch.float8_e4m3fn], ids=["int8", "fp8"])
@pytest.mark.parametrize(("size", "group"), [(63, None), (128, 64), (384, 128)])
@pytest.mark.parametrize("adds", [False, True])
def test_quantised_norm(randn: Randn, quantised: torch.dtype, size: int, group: int | None, adds: bool) -> None:
    x, weight, residual = randn(3, size, dtype=torch.bfloat16), randn(size), randn(3, size, dtype=torch.bfloat16)
    x[1], residual[1] = 0, 0
    want = REFERENCE("rms_norm")(x + residual if adds else x, weight, EPS, False)
    values, scales, *total = norm.rms_norm_quantised(
        x, weight, EPS, False, quantised, group, residual if adds else None
    )
    assert values.dtype == quantised and scales.shape == (3, size // (group or size))
    assert not adds or torch.equal(total[0], x + residual)
    grouped = want.float().unflatten(-1, (-1, group or size))
    limit = LARGEST[quantised]
    torch.testing.assert_close(scales, grouped.abs().amax(-1).clamp_min(limit * TINY) / limit, rtol=1e-2, atol=1e-9)
    restored = values.float().unflatten(-1, (-1, group or size)) * scales.unsqueeze(-1)
    # Half a step of int8, or the last bit of e4m3's three.
    room = scales.unsqueeze(-1) / 2 if quantised == torch.int8 else grouped.abs() / 16
    assert ((restored - grouped).abs() <= room + 0.01 * grouped.abs() + scales.unsqueeze(-1) * 1e-2).all()


def test_what_cannot_be_quantised_is_named(randn: Randn) -> None:
    with pytest.raises(ValueError, match=r"cannot quantise to torch.int32; choices: torch.int8"):
        norm.rms_norm_quantised(randn(2, 8), randn(8), EPS, False, torch.int32)
    with pytest.raises(ValueError, match="groups of 3 do not divide rows of 8"):
        norm.rms_norm_quantised(randn(2, 8), randn(8), EPS, False, torch.int8, 3)


def test_what_the_kernel_cannot_take_is_declined_with_a_reason(randn: Randn) -> None:
    x, weight = randn(6, 4).t(), randn(6)
    assert torch.equal(norm.rms_norm(x, weight, EPS, False), REFERENCE("rms_norm")(x, weight, EPS, False))
    assert registry.declined() == {("rms_norm", "rows that are no view of at most three dimensions"): 1}
