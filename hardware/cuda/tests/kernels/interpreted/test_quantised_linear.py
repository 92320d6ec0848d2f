"""Linear layers of 8 bits in the interpreter against the reference: odd sizes, partial blocks, static scales."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trunnion.ops import quantised, registry
from trunnion_cuda.kernels import quantised_linear, row_quantisation
from trunnion_cuda.kernels.tuning import Config

INT8, FP8 = torch.int8, torch.float8_e4m3fn
DTYPES = pytest.mark.parametrize("dtype", [INT8, FP8], ids=["int8", "fp8"])
Randn = Callable[..., torch.Tensor]


@pytest.fixture(autouse=True)
def a_late_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that multiplies e4m3: the interpreter has no device to ask."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))


@DTYPES
@pytest.mark.parametrize(("shape", "group"), [((5, 63), None), ((3, 300), 128), ((2, 128), 32), ((0, 64), None)])
def test_quantised_rows_are_the_references(
    randn: Randn, shape: tuple[int, int], group: int | None, dtype: torch.dtype
) -> None:
    x = 5 * randn(*shape)
    x[:1] = 0
    values, scales = row_quantisation.quantise_rows(x, dtype, group)
    wanted = quantised.quantise(x, dtype, group)
    assert torch.equal(values.float(), wanted[0].float())
    torch.testing.assert_close(scales, wanted[1], rtol=1e-6, atol=0)


@DTYPES
def test_a_static_scale_cuts_what_is_beyond_it(randn: Randn, dtype: torch.dtype) -> None:
    x, scale = 50 * randn(4, 40), torch.tensor([0.1])
    values, scales = row_quantisation.quantise_rows(x, dtype, scale=scale)
    assert torch.equal(values.float(), quantised.quantise(x, dtype, None, scale)[0].float())
    assert (scales == scale).all() and values.float().abs().max() == quantised.LARGEST[dtype]


@DTYPES
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_has_no_scale(randn: Randn, value: float, dtype: torch.dtype) -> None:
    """Then nor has what it is multiplied into; other groups, and other rows, are as they were."""
    x = randn(3, 64)
    wanted = row_quantisation.quantise_rows(x, dtype, 32)
    x[1, 40] = value
    values, scales = row_quantisation.quantise_rows(x, dtype, 32)
    assert scales[1, 1].isnan() and quantised.quantise(x, dtype, 32)[1][1, 1].isfinite().logical_not()
    kept = torch.tensor([[True, True], [True, False], [True, True]])
    assert torch.equal(scales[kept], wanted[1][kept])
    assert torch.equal(*(of.float().unflatten(-1, (2, 32))[kept] for of in (values, wanted[0])))


def test_a_row_of_nan_stays_in_its_row(randn: Randn) -> None:
    x, (weight, scale) = randn(3, 40), quantised.quantise(randn(6, 40), INT8)
    x[1, 3] = float("nan")
    got = quantised_linear.w8a8_linear(x, weight, scale[:, 0].contiguous(), None, None)
    assert got[1].isnan().all() and got[[0, 2]].isfinite().all()


@DTYPES
@pytest.mark.parametrize("is_static", [False, True], ids=["dynamic", "static"])
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 5, 40), (17, 70, 130), (33, 16, 256), (0, 8, 32)], ids=str)
def test_scales_per_row(randn: Randn, rows: int, columns: int, depth: int, is_static: bool, dtype: torch.dtype) -> None:
    x, bias = randn(rows, depth, dtype=torch.bfloat16), randn(columns, dtype=torch.bfloat16)
    weight, scale = quantised.quantise(randn(columns, depth), dtype)
    args = x, weight, scale[:, 0].contiguous(), torch.tensor([0.02]) if is_static else None, bias
    got = quantised_linear.w8a8_linear(*args)
    wanted = registry.OPERATORS.reference("w8a8_linear")(*args)
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=1e-3)
    assert not registry.declined()


@pytest.mark.parametrize("block", [(128, 128), (16, 32)], ids=str)
@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 130, 200), (3, 48, 128), (17, 20, 40)], ids=str)
def test_scales_per_block(randn: Randn, rows: int, columns: int, depth: int, block: tuple[int, int]) -> None:
    """Last blocks are partial ones, and no two blocks have scales alike."""
    x = randn(2, rows, depth, dtype=torch.bfloat16)
    weight = randn(columns, depth).to(FP8)
    scale = randn(-(-columns // block[0]), -(-depth // block[1])).abs() + 0.1
    args = x, weight, scale, None, *block
    got = quantised_linear.block_fp8_linear(*args)
    wanted = registry.OPERATORS.reference("block_fp8_linear")(*args)
    assert got.shape == (2, rows, columns)
    torch.testing.assert_close(got, wanted, rtol=1e-2, atol=2e-2)


@pytest.mark.parametrize("config", quantised_linear.SPACE.configs, ids=str)
def test_every_configuration(randn: Randn, config: Config, force_configuration: Callable[..., None]) -> None:
    force_configuration(quantised_linear, config)
    x, (weight, scale) = randn(70, 150), quantised.quantise(randn(140, 150), INT8)
    args = x, weight, scale[:, 0].contiguous(), None, None
    wanted = registry.OPERATORS.reference("w8a8_linear")(*args)
    torch.testing.assert_close(quantised_linear.w8a8_linear(*args), wanted, rtol=1e-5, atol=1e-5)


def test_a_device_without_float8_declines(randn: Randn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    args = randn(2, 32), randn(4, 32).to(FP8), torch.ones(4), None, None
    wanted = registry.OPERATORS.reference("w8a8_linear")(*args)
    assert torch.equal(quantised_linear.w8a8_linear(*args), wanted)
    assert ("w8a8_linear", "float8_e4m3fn before compute capability 8.9") in registry.declined()
