"""Weights that are packed once: products with them, who packs and who does not, reloads, reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import Collectives, ParallelGroup
from trunnion.layers.linear import ColumnParallelLinear
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.weights.loader import finalize_layers
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


@pytest.mark.parametrize("size", [2, 34, 1026])
def test_rows_of_packed_weights(inference: None, size: int, threads: int) -> None:
    weight = torch.randn(208, size).bfloat16()
    packed = operators().pack_linear(weight)
    for count in (0, 1, 7, 100):
        ids = torch.randint(208, (count,))
        for given in (ids, ids.int(), torch.stack([ids, ids], 1)[:, 0]):
            found = operators().packed_rows(given, packed)
            assert found.dtype == torch.bfloat16 and torch.equal(found, weight[ids])


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
    for row in (-1, 16):
        with pytest.raises(RuntimeError, match=f"row {row} of a weight of 16 rows"):
            operators().packed_rows(torch.tensor([0, row]), packed)
    with pytest.raises(RuntimeError, match="ids are no vector of int32 or int64"):
        operators().packed_rows(torch.zeros(1, 1, dtype=torch.int64), packed)
    with pytest.raises(RuntimeError, match="packed is no dense matrix of bfloat16"):
        operators().packed_rows(torch.tensor([0]), torch.randn(16, 8))


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


class Tied(nn.Module):
    """A vocabulary that does not fill the last rank's rows, and a head tied to it."""

    vocab_size, hidden_size = 91, 70

    def __init__(self, parallel: ParallelGroup | None = None) -> None:
        super().__init__()
        ctx = BuildContext(hardware=CpuHardware(), dtype=torch.bfloat16, parallel=parallel or ParallelGroup())
        sizes = (self.vocab_size, self.hidden_size)
        self.embed = VocabParallelEmbedding(*sizes, ctx=ctx, prefix="embed")
        self.head = ParallelLMHead(*sizes, ctx=ctx, prefix="head")
        self.head.tie_to(self.embed)
        nn.init.normal_(self.embed.weight)

    def load(self, weight: torch.Tensor) -> None:
        """As the loader does it: modules that share a parameter get one new one."""
        fresh = nn.Parameter(weight.clone(), requires_grad=False)
        fresh.__dict__.update(self.embed.weight.__dict__)
        self.embed.weight = self.head.weight = fresh
        finalize_layers(self.modules(), torch.device("cpu"))


class OneOfTwo(Collectives):
    """What the second of two ranks adds up and gathers: the first one's part is zero."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat([torch.zeros_like(x), x], dim)


RANKS = [ParallelGroup(), ParallelGroup(rank=1, size=2, collectives=OneOfTwo())]


@pytest.mark.parametrize("parallel", RANKS, ids=["alone", "second of two"])
def test_a_tied_head_is_packed_with_its_embedding(
    native_bf16: Native, inference: None, parallel: ParallelGroup
) -> None:
    model, rows = Tied(parallel), torch.arange(Tied.vocab_size)
    x = torch.randn(3, Tied.hidden_size).bfloat16()
    plain, embeds, logits = model.embed.weight.data.clone(), model.embed(rows), model.head(x)
    line = pack(packable_layers(model), [model], native_bf16)
    assert line == f"{model.embed.weight.nbytes:,} bytes"
    assert model.head.weight is model.embed.weight and not torch.equal(model.embed.weight, plain)
    assert torch.equal(model.embed(rows), embeds)
    torch.testing.assert_close(model.head(x), logits, rtol=1e-2, atol=1e-1)
    place = model.embed.weight.data_ptr()
    assert pack(packable_layers(model), [model], native_bf16) == line
    model.load(-plain)
    assert is_packed(model.embed) and model.head.weight is model.embed.weight
    assert model.embed.weight.data_ptr() == place
    assert torch.equal(model.embed(rows), -embeds)
    torch.testing.assert_close(model.head(x), -logits, rtol=1e-2, atol=1e-1)
    finalize_layers(model.modules(), torch.device("cpu"))
    assert torch.equal(model.embed(rows), -embeds)


def test_a_tied_head_whose_rows_others_read_keeps_them(native_bf16: Native) -> None:
    model = Tied()
    plain = model.embed.weight
    model.reader = nn.Embedding.from_pretrained(plain)
    for seen in (model, nn.ModuleList([model.head])):
        assert pack(packable_layers(seen), [seen], native_bf16) == "0 bytes; 1 kept: its rows are read elsewhere"
    model.embed.keeps_dense_weight = True
    del model.reader
    assert pack(packable_layers(model), [model], native_bf16) == "0 bytes; 1 kept: its rows are read elsewhere"
    assert model.embed.weight is plain and model.embed.weight_method is None
