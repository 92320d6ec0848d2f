"""The native operators against torch in float64, with every set of kernels that this processor can run."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trunnion.errors import UnsupportedError
from trunnion_cpu.native import Native, native

ROWS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 17, 66)
pytestmark = pytest.mark.usefixtures("isa", "inference")
Check = Callable[[torch.Tensor, torch.Tensor], None]


def operators() -> Any:
    return torch.ops.trunnion_cpu


@pytest.mark.parametrize("size", [1, 31, 33, 96, 577])
def test_linear(dtype: torch.dtype, check: Check, size: int, threads: int) -> None:
    """Rows and features that no block divides; features that no vector divides."""
    for features in (1, 5, 23, 24, 25, 200):
        weight, bias = (torch.randn(features, size) / size**0.5).to(dtype), torch.randn(features).to(dtype)
        for rows in ROWS:
            x = torch.randn(rows, size).to(dtype)
            expected = F.linear(x.double(), weight.double(), bias.double())
            check(operators().linear(x, weight, bias), expected)
            check(operators().linear(x, weight, None), expected - bias.double())


@pytest.mark.parametrize("size", [33, 1024, 1100])
def test_linear_of_many_rows(dtype: torch.dtype, check: Check, size: int, threads: int) -> None:
    """Packed on the way from 64 rows on: several panels of a feature, several blocks of rows, parts of a tile."""
    for features in (5, 33, 100):
        weight, bias = (torch.randn(features, size) / size**0.5).to(dtype), torch.randn(features).to(dtype)
        for rows in (63, 64, 65, 300):
            x = torch.randn(rows, size).to(dtype)
            expected = F.linear(x.double(), weight.double(), bias.double())
            check(operators().linear(x, weight, bias), expected)
            check(operators().linear(x, weight, None), expected - bias.double())


def test_linear_reads_rows_where_they_lie(dtype: torch.dtype, check: Check) -> None:
    """Columns of a wider tensor, rows of a larger one, several leading dimensions; what lies beside is not read."""
    wide, large = torch.full((5, 100), float("nan"), dtype=dtype), torch.full((9, 90), float("nan"), dtype=dtype)
    x, weight = wide[:, 10:47], large[1:8, 20:57]
    x.copy_(torch.randn(5, 37))
    weight.copy_(torch.randn(7, 37) / 6)
    expected = F.linear(x.double(), weight.double())
    check(operators().linear(x, weight, None), expected)
    check(operators().linear(x[::2], weight, None), expected[::2])
    check(operators().linear(x.unsqueeze(1), weight, None), expected.unsqueeze(1))
    across = torch.randn(37, 5).to(dtype).t()
    check(operators().linear(across, weight, None), F.linear(across.double(), weight.double()))
    heads = torch.randn(2, 3, 4, 37).to(dtype).transpose(1, 2)
    check(operators().linear(heads, weight, None), F.linear(heads.double(), weight.double()))


def test_kernels_include_nothing_with_inline_functions() -> None:
    """Their objects would carry copies with instructions of one set, of which a linker keeps any one for all."""
    kernels = Path(__file__).parents[1] / "csrc" / "kernels"
    included = {
        name for path in kernels.iterdir() for name in re.findall(r"#include [<\"](.*?)[>\"]", path.read_text())
    }
    assert included - {path.name for path in kernels.iterdir()} == {"cstdint", "cstring", "immintrin.h"}


def test_linear_names_what_does_not_fit() -> None:
    x = torch.randn(2, 8)
    with pytest.raises(RuntimeError, match="x has 8 features, the weight takes 9"):
        operators().linear(x, torch.randn(4, 9), None)
    with pytest.raises(RuntimeError, match="bias is no vector of 4 values"):
        operators().linear(x, torch.randn(4, 8), torch.randn(5))
    with pytest.raises(RuntimeError, match="matrix of x's dtype"):
        operators().linear(x, torch.randn(4, 8).bfloat16(), None)
    with pytest.raises(RuntimeError, match="choices: float32, bfloat16"):
        operators().linear(x.half(), torch.randn(4, 8).half(), None)


def _norm(x: torch.Tensor, weight: torch.Tensor, unit_offset: bool) -> torch.Tensor:
    factor = weight.double() + (1.0 if unit_offset else 0.0)
    return F.rms_norm(x.double(), x.shape[-1:], factor, 1e-6)


@pytest.mark.parametrize("unit_offset", [False, True], ids=["plain", "unit-offset"])
def test_norms(dtype: torch.dtype, check: Check, unit_offset: bool, threads: int) -> None:
    for rows, size in ((0, 8), (1, 1), (3, 5), (2, 16), (7, 33), (70, 577)):
        x, residual = torch.randn(rows, size).to(dtype), torch.randn(rows, size).to(dtype)
        weight = torch.randn(size).to(dtype)
        check(operators().rms_norm(x, weight, 1e-6, unit_offset), _norm(x, weight, unit_offset))
        normed, total = operators().fused_add_rms_norm(x, residual, weight, 1e-6, unit_offset)
        assert torch.equal(total, x + residual)
        check(normed, _norm(total, weight, unit_offset))


def test_norm_of_heads_within_wider_rows(dtype: torch.dtype, check: Check) -> None:
    """Query heads of a fused projection: two strides, and nothing between them is read."""
    fused = torch.full((5, 100), float("nan"), dtype=dtype)
    fused[:, :36] = torch.randn(5, 36)
    heads, weight = fused[:, :36].unflatten(1, (3, 12)), torch.randn(12).to(dtype)
    check(operators().rms_norm(heads, weight, 1e-6, False), _norm(heads, weight, False))
    turned = torch.randn(2, 3, 4, 12).to(dtype).permute(2, 0, 1, 3)
    check(operators().rms_norm(turned, weight, 1e-6, False), _norm(turned, weight, False))


def test_silu_and_mul(dtype: torch.dtype, check: Check, threads: int) -> None:
    for rows, size in ((0, 4), (1, 1), (3, 5), (2, 16), (7, 33), (70, 577)):
        x = (torch.randn(rows, 2 * size) * 4).to(dtype)
        gate, up = x.double().chunk(2, dim=-1)
        check(operators().silu_and_mul(x), F.silu(gate) * up)


def test_values_that_are_no_numbers_stay_so() -> None:
    """A fault upstream must not be rounded away; finite extremes stay finite."""
    x = torch.tensor([[float("nan"), 1.0, -200.0, 200.0, 1.0, 1.0, 1.0, 1.0]])
    for dtype in (torch.float32, torch.bfloat16):
        gated = operators().silu_and_mul(x.to(dtype))
        assert gated.isnan().tolist() == [[True, False, False, False]]
        assert abs(gated[0, 2]) < 1e-30 and gated[0, 3] == 200
        assert operators().linear(x.to(dtype), torch.ones(3, 8).to(dtype), None).isnan().all()


def test_a_set_of_kernels_that_is_not_there_is_named() -> None:
    found = native()
    assert isinstance(found, Native)
    with pytest.raises(UnsupportedError, match=r"'sve' .*choices: .*portable, reference"):
        found.choose("sve")
