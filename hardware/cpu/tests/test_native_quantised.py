"""Native products of quantised weights against float64, with every set of kernels that this processor can run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trunnion.ops.grouped_int import pack
from trunnion.ops.registry import OPERATORS
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.tiled_w8a8 import byte_tiles_of
from trunnion_cpu.tiled_weights import per_tile, tiles_of

ROWS = (0, 1, 2, 3, 4, 5, 8, 9, 17, 66)
pytestmark = pytest.mark.usefixtures("isa", "inference")
Check = Callable[[torch.Tensor, torch.Tensor], None]


def operators() -> Any:
    return torch.ops.trunnion_cpu


@pytest.mark.parametrize("static", [False, True], ids=["scale-per-row", "one-scale"])
@pytest.mark.parametrize("size", [1, 15, 64, 65, 200])
def test_w8a8(dtype: torch.dtype, check: Check, size: int, static: bool, threads: int) -> None:
    """The integers of x are those of the formula: multiplied in float64, they give the same."""
    for features in (1, 7, 50):
        weight = torch.randint(-128, 128, (features, size), dtype=torch.int8)
        weight_scale = torch.rand(features) * 0.01 + 0.001
        bias = torch.randn(features).to(dtype)
        for rows in ROWS:
            x = (torch.randn(rows, size) * 0.5).to(dtype)
            # Beyond one scale's range, too.
            input_scale = torch.tensor([0.008]) if static else None
            scale = torch.full((rows, 1), 0.008) if static else (x.float().abs().amax(1, keepdim=True) / 127)
            scale = scale.clamp(min=1e-12)
            codes = (x.float() / scale).clamp(-127, 127).round().double()
            expected = (codes @ weight.double().T) * scale.double() * weight_scale.double()
            check(operators().w8a8_linear(x, weight, weight_scale, input_scale, bias), expected + bias.double())
            check(operators().w8a8_linear(x, weight, weight_scale, input_scale, None), expected)


@pytest.mark.parametrize("static", [False, True], ids=["scale-per-row", "one-scale"])
@pytest.mark.parametrize("size", [8, 72, 200, 1000])
def test_w8a8_in_tiles(dtype: torch.dtype, check: Check, size: int, static: bool, threads: int) -> None:
    """As `test_w8a8`, of a weight laid out for it."""
    for features in (16, 48, 144):
        weight = torch.randint(-128, 128, (features, size), dtype=torch.int8)
        weight_scale = torch.rand(features) * 0.01 + 0.001
        bias, tiles = torch.randn(features).to(dtype), byte_tiles_of(weight)
        for rows in (*ROWS, 12, 13, 300):
            x = (torch.randn(rows, size + 3) * 0.5).to(dtype)[:, :size]
            input_scale = torch.tensor([0.008]) if static else None
            scale = torch.full((rows, 1), 0.008) if static else (x.float().abs().amax(1, keepdim=True) / 127)
            codes = (x.float() / scale).clamp(-127, 127).round().double()
            expected = (codes @ weight.double().T) * scale.double() * weight_scale.double()
            found = operators().tiled_w8a8_linear(x, tiles, weight_scale, input_scale, bias)
            check(found, expected + bias.double())
            check(operators().tiled_w8a8_linear(x, tiles, weight_scale, input_scale, None), expected)


@pytest.mark.parametrize("value", [-128, 127])
def test_w8a8_in_tiles_sums_the_largest_integers_exactly(dtype: torch.dtype, value: int) -> None:
    """Of the longest rows: in units of the last place of a sum in float32."""
    size = 1 << 16
    weight, scale = torch.full((16, size), value, dtype=torch.int8), torch.ones(16)
    x = torch.full((3, size), 127, dtype=dtype)
    x[1] = -127
    x[2, : size // 2] = -127
    found = operators().tiled_w8a8_linear(x, byte_tiles_of(weight), scale, None, None)
    expected = torch.tensor([127 * value * size, -127 * value * size, 0], dtype=torch.float64).to(dtype)
    assert torch.equal(found, expected.unsqueeze(1).expand(3, 16))


def test_w8a8_in_tiles_of_zeros_and_of_what_is_no_number(dtype: torch.dtype) -> None:
    tiles, scale = byte_tiles_of(torch.full((16, 72), -128, dtype=torch.int8)), torch.ones(16)
    x = torch.zeros(3, 72, dtype=dtype)
    x[1, 71], x[2, 0] = float("nan"), float("inf")
    found = operators().tiled_w8a8_linear(x, tiles, scale, None, None)
    assert not found[0].any() and found[1:].isnan().all()


def test_w8a8_of_zeros_and_of_what_is_no_number(dtype: torch.dtype) -> None:
    weight, scale = torch.full((3, 70), -128, dtype=torch.int8), torch.ones(3)
    x = torch.zeros(2, 70, dtype=dtype)
    assert not operators().w8a8_linear(x, weight, scale, None, None).any()
    x[1, 69] = float("nan")
    found = operators().w8a8_linear(x, weight, scale, None, None)
    assert not found[0].any() and found[1].isnan().all()


GROUPED = {
    "4-bits": (4, 192, 64, False),
    "4-bits-zero-points": (4, 160, 32, True),
    "4-bits-short-group": (4, 152, 128, True),
    "4-bits-one-group": (4, 90, 90, False),
    "4-bits-two-features": (4, 2, 128, True),
    "8-bits": (8, 96, 32, False),
    "8-bits-odd": (8, 73, 73, True),
    "8-bits-short-group": (8, 100, 64, True),
}


@pytest.mark.parametrize("name", GROUPED)
def test_grouped(dtype: torch.dtype, check: Check, name: str, threads: int) -> None:
    bits, size, group, has_zeros = GROUPED[name]
    groups = -(-size // group)
    for features in (1, 7, 50):
        values = torch.randint(0, 2**bits, (features, size))
        scales = ((torch.rand(features, groups) + 0.1) * 2.0**-bits).to(dtype)
        zeros = torch.randint(0, 2**bits, (features, groups), dtype=torch.uint8) if has_zeros else None
        shift = zeros.double() if zeros is not None else torch.full((features, groups), 2.0 ** (bits - 1)).double()

        def spread(of_groups: torch.Tensor) -> torch.Tensor:
            return of_groups.double().repeat_interleave(group, 1)[:, :size]

        dense = (values.double() - spread(shift)) * spread(scales)
        bias = torch.randn(features).to(dtype)
        for rows in ROWS:
            x = (torch.randn(rows, size) / size**0.5).to(dtype)
            found = operators().grouped_int_linear(x, pack(values, bits), scales, zeros, bias, bits, group)
            check(found, x.double() @ dense.T + bias.double())
            found = operators().grouped_int_linear(x, pack(values, bits), scales, zeros, None, bits, group)
            check(found, x.double() @ dense.T)


@pytest.mark.parametrize("name", GROUPED)
def test_grouped_in_tiles(dtype: torch.dtype, check: Check, name: str, threads: int) -> None:
    """As `test_grouped`, of weights laid out for it."""
    bits, size, group, has_zeros = GROUPED[name]
    groups = -(-size // group)
    for features in (1, 17, 70, 130):
        values = torch.randint(0, 2**bits, (features, size))
        scales = ((torch.rand(features, groups) + 0.1) * 2.0**-bits).to(dtype)
        zeros = torch.randint(0, 2**bits, (features, groups), dtype=torch.uint8) if has_zeros else None
        shift = zeros.double() if zeros is not None else torch.full((features, groups), 2.0 ** (bits - 1)).double()
        dense = (values.double() - shift.repeat_interleave(group, 1)[:, :size]) * scales.double().repeat_interleave(
            group, 1
        )[:, :size]
        bias, tiles, tiled_scales = (
            torch.randn(features).to(dtype),
            tiles_of(pack(values, bits), bits),
            per_tile(scales),
        )
        tiled_zeros = None if zeros is None else per_tile(zeros)
        for rows in (*ROWS, 12, 13, 39, 40, 300):
            x = (torch.randn(rows, size + 3) / size**0.5).to(dtype)[:, :size]
            for given in (bias, None):
                found = operators().tiled_grouped_linear(
                    x, tiles, tiled_scales, tiled_zeros, given, bits, group, features
                )
                check(found, x.double() @ dense.T + (0 if given is None else given.double()))


def test_grouped_in_tiles_of_more_than_a_panel(dtype: torch.dtype, check: Check) -> None:
    """Whose sums go through memory."""
    size, features, group = 2200, 33, 96
    values = torch.randint(0, 16, (features, size))
    scales = ((torch.rand(features, -(-size // group)) + 0.1) / 16).to(dtype)
    dense = (values.double() - 8) * scales.double().repeat_interleave(group, 1)[:, :size]
    x = (torch.randn(45, size) / size**0.5).to(dtype)
    tiles, scales = tiles_of(pack(values, 4), 4), per_tile(scales)
    check(operators().tiled_grouped_linear(x, tiles, scales, None, None, 4, group, features), x.double() @ dense.T)


def rounded(x: torch.Tensor, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x with each block's values as multiples of its scale, and the scales, spread; the formula in float32."""
    values, scales = torch.zeros_like(x, dtype=torch.float64), torch.zeros_like(x, dtype=torch.float64)
    for begin in range(0, x.shape[1], block):
        part = x[:, begin : begin + block].float()
        scale = (part.abs().amax(1, keepdim=True) / 127).clamp(min=1e-12)
        values[:, begin : begin + block] = (part / scale).round().double() * scale.double()
        scales[:, begin : begin + block] = scale.double()
    return values, scales


TILED = {**GROUPED, "4-bits-wide-groups": (4, 600, 192, True), "8-bits-one-wide-group": (8, 301, 301, False)}
BLOCKS = {"4-bits-one-group": 96, "8-bits-odd": 80, "4-bits-two-features": 8, "4-bits-wide-groups": 64,
          "8-bits-one-wide-group": 128}  # fmt: skip
"""Name -> features of a block, where they are not those of a group."""


@pytest.mark.parametrize("name", TILED)
def test_tiled(dtype: torch.dtype, check: Check, name: str, threads: int) -> None:
    """Exact of rows rounded by the formula; of rows as they were, off by no more than half a step of each value."""
    bits, size, group, has_zeros = TILED[name]
    groups = -(-size // group)
    for features in (1, 17, 70):
        values = torch.randint(0, 2**bits, (features, size))
        scales = ((torch.rand(features, groups) + 0.1) * 2.0**-bits).to(dtype)
        zeros = torch.randint(0, 2**bits, (features, groups), dtype=torch.uint8) if has_zeros else None
        shift = zeros.double() if zeros is not None else torch.full((features, groups), 2.0 ** (bits - 1)).double()
        dense = (values.double() - shift.repeat_interleave(group, 1)[:, :size]) * scales.double().repeat_interleave(
            group, 1
        )[:, :size]
        bias = torch.randn(features).to(dtype)
        codes, tiled_scales = tiles_of(pack(values, bits), bits), per_tile(scales)
        tiled_zeros = None if zeros is None else per_tile(zeros)
        for rows in ROWS:
            x = (torch.randn(rows, size) / size**0.5).to(dtype)
            for given in (bias, None):
                found = operators().tiled_int_linear(
                    x, codes, tiled_scales, tiled_zeros, None, given, bits, group, features
                )
                near, steps = rounded(x, BLOCKS.get(name, group))
                offset = 0 if given is None else given.double()
                check(found, near @ dense.T + offset)
                exact, bound = x.double() @ dense.T, steps @ dense.abs().T / 2
                assert ((near @ dense.T - exact).abs() <= bound * 1.001 + 1e-9).all()


@pytest.mark.parametrize("bits", [4, 8])
def test_tiled_with_minima_and_scales_in_float16(dtype: torch.dtype, check: Check, bits: int) -> None:
    """As blocks of GGUF's Q4_1; subnormal scales too."""
    size, features = 96, 40
    values = torch.randint(0, 2**bits, (features, size))
    scales, mins = (torch.rand(features, 3) * 2.0**-bits).half(), torch.randn(features, 3).half()
    scales[0] = 6e-8
    dense = values.double() * scales.double().repeat_interleave(32, 1) + mins.double().repeat_interleave(32, 1)
    codes = tiles_of(pack(values, bits), bits)
    for rows in ROWS:
        x = (torch.randn(rows, size) / size**0.5).to(dtype)
        found = operators().tiled_int_linear(x, codes, per_tile(scales), None, per_tile(mins), None, bits, 32, features)
        check(found, rounded(x, 32)[0] @ dense.T)


def test_tiled_rows_of_zeros_and_of_what_is_no_number(dtype: torch.dtype) -> None:
    codes, scales = tiles_of(torch.full((3, 35), 255, dtype=torch.uint8), 4), per_tile(torch.ones(3, 3).to(dtype))
    x = torch.zeros(3, 70, dtype=dtype)
    x[1, 69], x[2, 0] = float("nan"), float("inf")
    found = operators().tiled_int_linear(x, codes, scales, None, None, None, 4, 32, 3)
    assert not found[0].any() and found[1:].isnan().all()


def test_what_does_not_fit_is_named() -> None:
    x, weight = torch.randn(2, 64), torch.zeros(4, 32, dtype=torch.uint8)
    with pytest.raises(RuntimeError, match="groups of 24 features"):
        operators().grouped_int_linear(x, weight, torch.ones(4, 3), None, None, 4, 24)
    with pytest.raises(RuntimeError, match="weights of 3 bits; choices: 4, 8"):
        operators().grouped_int_linear(x, weight, torch.ones(4, 2), None, None, 3, 32)
    with pytest.raises(RuntimeError, match="scales is no dense matrix of 4 by 2"):
        operators().grouped_int_linear(x, weight, torch.ones(4, 3), None, None, 4, 32)
    with pytest.raises(RuntimeError, match="of 1 tiles by 512 bytes"):
        operators().tiled_int_linear(x, weight, torch.ones(1, 2, 16), None, None, None, 4, 32, 4)
    with pytest.raises(RuntimeError, match="of 1 tiles by 512 bytes"):
        operators().tiled_grouped_linear(x, weight, torch.ones(1, 2, 16), None, None, 4, 32, 4)
    with pytest.raises(RuntimeError, match="scales are not dense, 1 by 2 by 16"):
        codes = torch.zeros(1, 512, dtype=torch.uint8)
        operators().tiled_int_linear(x, codes, torch.ones(1, 3, 16), None, None, None, 4, 32, 4)
    with pytest.raises(RuntimeError, match="a weight of 4 by 64 is not made of tiles of 16 by 4 up to 65536"):
        operators().tiled_w8a8_linear(x, torch.zeros(4, 64, dtype=torch.int8), torch.ones(4), None, None)
    with pytest.raises(RuntimeError, match="weight_scale has 3 values, expected 16"):
        operators().tiled_w8a8_linear(x, torch.zeros(16, 64, dtype=torch.int8), torch.ones(3), None, None)
    with pytest.raises(RuntimeError, match="weight_scale has 3 values, expected 4"):
        operators().w8a8_linear(x, torch.zeros(4, 64, dtype=torch.int8), torch.ones(3), None, None)


def test_weights_in_float8_are_declined_and_counted() -> None:
    CpuHardware().initialize(0)
    OPERATORS.reset_declined()
    weight = torch.ones(4, 64).to(torch.float8_e4m3fn)
    torch.ops.trunnion.w8a8_linear(torch.randn(2, 64), weight, torch.ones(4), None, None)
    assert OPERATORS.declined() == {("w8a8_linear", "weights in torch.float8_e4m3fn"): 1}
    OPERATORS.reset_declined()
