"""Weights that are packed once: products with them, who packs and who does not, reloads, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.linear import ColumnParallelLinear
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.methods import packable_layers
from trunnion_cpu.native import Absent, Native, native
from trunnion_cpu.packed_weights import PAYS, is_packed, pack

FOUND = native()
Check = Callable[[torch.Tensor, torch.Tensor], None]
pytestmark = pytest.mark.skipif(not isinstance(FOUND, Native), reason="no native operators")


def operators() -> Any:
    return torch.ops.trunnion_cpu


@pytest.mark.parametrize("dtype", [torch.bfloat16], ids=["bfloat16"], indirect=True)
@pytest.mark.parametrize("size", [2, 34, 1000, 1026, 2050])
def test_products_with_packed_weights(
    isa: str, inference: None, dtype: torch.dtype, check: Check, size: int, threads: int
) -> None:
    """Rows and tiles that no block divides, features in several pieces."""
    for features in (16, 48, 80, 208):
        weight, bias = (torch.randn(features, size) / size**0.5).to(dtype), torch.randn(features).to(dtype)
        packed = operators().pack_linear(weight)
        assert packed.shape == weight.shape
        for rows in (0, 1, 2, 5, 6, 7, 12, 13, 25, 32, 67, 300):
            x = torch.randn(rows, size).to(dtype)
            expected = F.linear(x.double(), weight.double(), bias.double())
            check(operators().packed_linear(x, packed, bias), expected)
            check(operators().packed_linear(x, packed, None), expected - bias.double())


def test_pairs_of_features_lie_side_by_side(inference: None) -> None:
    weight = torch.randn(48, 70).bfloat16()
    tiles = weight.view(3, 16, 35, 2).transpose(1, 2).reshape(48, 70)
    assert torch.equal(operators().pack_linear(weight), tiles)


def test_rows_are_read_where_they_lie(inference: None) -> None:
    weight = torch.randn(32, 38).bfloat16()
    packed, wide = operators().pack_linear(weight), torch.full((5, 100), float("nan")).bfloat16()
    x = wide[:, 11:49]
    x.copy_(torch.randn(5, 38))
    for given in (x, x[::2], x.unsqueeze(1), torch.randn(38, 5).bfloat16().t()):
        expected = F.linear(given.double(), weight.double())
        torch.testing.assert_close(
            operators().packed_linear(given, packed, None).double(), expected, rtol=1e-2, atol=0.1
        )


def test_operators_name_what_does_not_fit() -> None:
    packed = operators().pack_linear(torch.randn(16, 8).bfloat16())
    with pytest.raises(RuntimeError, match=r"weight is \[17, 8\], expected multiples of 16 and 2"):
        operators().pack_linear(torch.randn(17, 8).bfloat16())
    with pytest.raises(RuntimeError, match=r"weight is \[16, 7\], expected multiples of 16 and 2"):
        operators().pack_linear(torch.randn(16, 7).bfloat16())
    with pytest.raises(RuntimeError, match="weight is no dense matrix of bfloat16"):
        operators().pack_linear(torch.randn(16, 8))
    with pytest.raises(RuntimeError, match="x has 6 features, the weight takes 8"):
        operators().packed_linear(torch.randn(1, 6).bfloat16(), packed, None)
    with pytest.raises(RuntimeError, match="x is not in bfloat16"):
        operators().packed_linear(torch.randn(1, 8), packed, None)
    with pytest.raises(RuntimeError, match="bias is no vector of 16 values"):
        operators().packed_linear(torch.randn(1, 8).bfloat16(), packed, torch.randn(15).bfloat16())


class Layers(nn.Module):
    """Layers: one that can be packed, one that others read, two that share memory, a tied one, one of odd size."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        ctx = BuildContext(hardware=CpuHardware(), dtype=dtype)
        self.plain = ColumnParallelLinear(64, 48, bias=True, ctx=ctx, prefix="plain")
        self.read = ColumnParallelLinear(64, 48, ctx=ctx, prefix="read")
        self.read.keeps_dense_weight = True
        self.first = ColumnParallelLinear(64, 48, ctx=ctx, prefix="first")
        self.second = ColumnParallelLinear(64, 48, ctx=ctx, prefix="second")
        self.second.weight = nn.Parameter(self.first.weight.data[:32], requires_grad=False)
        self.tied = ColumnParallelLinear(64, 48, ctx=ctx, prefix="tied")
        self.embed = nn.Module()
        self.embed.weight = self.tied.weight
        self.odd = ColumnParallelLinear(64, 40, ctx=ctx, prefix="odd")
        for parameter in self.parameters():
            nn.init.normal_(parameter)


LAYERS = ("plain", "read", "first", "second", "tied", "odd")


@pytest.fixture
def native_bf16() -> Native:
    assert isinstance(FOUND, Native)
    if FOUND.isa not in PAYS:
        pytest.skip(f"packing does not pay with {FOUND.isa}")
    return FOUND


def outputs(model: Layers, x: torch.Tensor) -> dict[str, torch.Tensor]:
    with torch.inference_mode():
        return {name: getattr(model, name)(x).clone() for name in LAYERS}


def test_who_is_packed(native_bf16: Native) -> None:
    model, x = Layers(torch.bfloat16), torch.randn(3, 64).bfloat16()
    before, placements = outputs(model, x), dict(model.plain.weight.__dict__)
    line = pack(packable_layers(model), [model], native_bf16)
    assert line == (
        f"{48 * 64 * 2:,} bytes; 1 kept: a weight of [40, 64] is not made of tiles of 16 by 2;"
        " 4 kept: its rows are read elsewhere"
    )
    assert [name for name in LAYERS if is_packed(getattr(model, name))] == ["plain"]
    assert model.plain.weight.__dict__ == placements and placements
    torch.testing.assert_close(outputs(model, x), before, rtol=1e-2, atol=1e-1)
    place = model.plain.weight.data_ptr()
    assert pack(packable_layers(model), [model], native_bf16) == line
    assert model.plain.weight.data_ptr() == place


def test_other_holders_of_a_parameter_keep_rows(native_bf16: Native) -> None:
    """As a module does that a layer stands in for."""
    model = Layers(torch.bfloat16)
    held = model.plain.weight
    rows = held.clone()
    pack(packable_layers(model), [model], native_bf16)
    assert torch.equal(held, rows) and not torch.equal(model.plain.weight, rows)


def test_a_reload_is_packed_where_the_first_one_lies(native_bf16: Native) -> None:
    model, other, x = Layers(torch.bfloat16), Layers(torch.bfloat16), torch.randn(3, 64).bfloat16()
    pack(packable_layers(model), [model], native_bf16)
    place = model.plain.weight.data_ptr()
    model.plain.finalize()
    assert is_packed(model.plain)
    # As the loader does it.
    model.plain.weight = nn.Parameter(other.plain.weight.data.clone(), requires_grad=False)
    model.plain.bias = other.plain.bias
    model.plain.finalize()
    assert is_packed(model.plain) and model.plain.weight.data_ptr() == place
    torch.testing.assert_close(outputs(model, x)["plain"], outputs(other, x)["plain"], rtol=1e-2, atol=1e-1)


def test_nothing_is_packed_where_it_does_not_pay(native_bf16: Native) -> None:
    model = Layers(torch.float32)
    assert pack(packable_layers(model), [model], native_bf16).startswith(
        "0 bytes; 6 kept: torch.float32 is not bfloat16"
    )
    model = Layers(torch.bfloat16)
    assert pack(packable_layers(model), [model], Absent("gone", is_wanted=True)) == "no: gone"
    before = native_bf16.isa
    native_bf16.choose("portable")
    try:
        assert pack(packable_layers(model), [model], native_bf16) == "no: it pays with avx512_bf16"
    finally:
        native_bf16.choose(before)
    assert not any(is_packed(getattr(model, name)) for name in LAYERS)
