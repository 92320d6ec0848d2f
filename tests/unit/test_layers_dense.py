"""Dense layers: where the parts of a checkpoint land on each rank, what they compute, what a method decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import Collectives, ParallelGroup
from trunnion.interfaces.methods import LinearMethod, LinearShape
from trunnion.interfaces.quantization import W8A8, Scheme
from trunnion.interfaces.weights import Placement, placements_of, set_placements
from trunnion.layers.activation import Gelu, GeluTanhAndMul, SiluAndMul
from trunnion.layers.attention import Attention
from trunnion.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from trunnion.layers.norm import LayerNorm, RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.reference import ReferenceHardware
from trunnion.rope import RopeParameters


class RankByRank(Collectives):
    """Returns this rank's own contribution; tests add or join the ranks themselves."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x


def _context(rank: int = 0, size: int = 1, **options: Any) -> BuildContext:
    parallel = ParallelGroup(rank=rank, size=size, collectives=RankByRank())
    options = {"hardware": ReferenceHardware(), "dtype": torch.float32, **options}
    return BuildContext(parallel=parallel, **options)


def _load(parameter: torch.Tensor, **parts: torch.Tensor) -> None:
    """Fill a parameter as the loader does: zeros, then every declared part."""
    placements = placements_of(parameter)
    assert set(placements) == set(parts)
    parameter.data.zero_()
    for name, place in placements.items():
        assert tuple(parts[name].shape) == place.shape, name
        parameter.data[place.target] = parts[name][place.source]


def _randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return nn.functional.linear(x, weight, bias)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_merged_columns_join_to_the_whole(size: int) -> None:
    gate, up, x = _randn(12, 7), _randn(6, 7, seed=1), _randn(5, 7, seed=2)
    gate_bias, up_bias = _randn(12, seed=3), _randn(6, seed=4)
    outputs = []
    for rank in range(size):
        layer = MergedColumnParallelLinear(7, [12, 6], bias=True, ctx=_context(rank, size), prefix="gate_up_proj")
        _load(layer.weight, gate=gate, up=up)
        _load(layer.bias, gate=gate_bias, up=up_bias)
        outputs.append(layer(x).split(layer.part_sizes, dim=-1))
    torch.testing.assert_close(torch.cat([o[0] for o in outputs], -1), _linear(x, gate, gate_bias))
    torch.testing.assert_close(torch.cat([o[1] for o in outputs], -1), _linear(x, up, up_bias))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_columns_join_to_the_whole(size: int) -> None:
    weight, bias, x = _randn(8, 7), _randn(8, seed=1), _randn(3, 7, seed=2)
    outputs = []
    for rank in range(size):
        layer = ColumnParallelLinear(7, 8, bias=True, ctx=_context(rank, size), prefix="proj")
        _load(layer.weight, **{"": weight})
        _load(layer.bias, **{"": bias})
        outputs.append(layer(x))
    torch.testing.assert_close(torch.cat(outputs, -1), _linear(x, weight, bias))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_rows_add_to_the_whole_and_the_bias_once(size: int) -> None:
    weight, bias, x = _randn(5, 8), 100 + _randn(5, seed=1), _randn(3, 8, seed=2)
    total = torch.zeros(3, 5)
    for rank in range(size):
        layer = RowParallelLinear(8, 5, bias=True, ctx=_context(rank, size), prefix="o_proj")
        _load(layer.weight, **{"": weight})
        _load(layer.bias, **{"": bias})
        total += layer(x.chunk(size, dim=-1)[rank])
    torch.testing.assert_close(total, _linear(x, weight, bias))


def test_replicated_is_whole_on_every_rank() -> None:
    weight, x = _randn(5, 8), _randn(3, 8, seed=2)
    layer = ReplicatedLinear(8, 5, ctx=_context(1, 2), prefix="router")
    _load(layer.weight, **{"": weight})
    torch.testing.assert_close(layer(x), _linear(x, weight))
    assert layer.bias is None


@pytest.mark.parametrize(("size", "kv_heads"), [(1, 1), (1, 4), (2, 4), (2, 2), (2, 1), (4, 2), (4, 1)])
def test_qkv_heads_of_every_rank(size: int, kv_heads: int) -> None:
    """Every query head meets the KV head that it meets on one rank; a KV head may lie on several."""
    heads, head_dim, hidden = 4, 3, 10
    q, k, v = _randn(12, hidden), _randn(kv_heads * 3, hidden, seed=1), _randn(kv_heads * 3, hidden, seed=2)
    q_bias, k_bias, v_bias = _randn(12, seed=4), _randn(kv_heads * 3, seed=5), _randn(kv_heads * 3, seed=6)
    x = _randn(5, hidden, seed=3)
    whole_q, whole_k, whole_v = (
        _linear(x, w, b).unflatten(-1, (-1, head_dim)) for w, b in ((q, q_bias), (k, k_bias), (v, v_bias))
    )
    for rank in range(size):
        ctx = _context(rank, size)
        layer = QKVParallelLinear(hidden, head_dim, heads, kv_heads, bias=True, ctx=ctx, prefix="qkv_proj")
        assert (layer.num_heads, layer.num_kv_heads) == (heads // size, max(1, kv_heads // size))
        _load(layer.weight, q=q, k=k, v=v)
        _load(layer.bias, q=q_bias, k=k_bias, v=v_bias)
        parts = layer(x).split([layer.q_size, layer.kv_size, layer.kv_size], dim=-1)
        mine_q, mine_k, mine_v = (part.unflatten(-1, (-1, head_dim)) for part in parts)
        for local in range(layer.num_heads):
            head = rank * layer.num_heads + local
            kv_head, local_kv = head // (heads // kv_heads), local // (layer.num_heads // layer.num_kv_heads)
            torch.testing.assert_close(mine_q[:, local], whole_q[:, head])
            torch.testing.assert_close(mine_k[:, local_kv], whole_k[:, kv_head])
            torch.testing.assert_close(mine_v[:, local_kv], whole_v[:, kv_head])


def test_qkv_with_wider_queries() -> None:
    layer = QKVParallelLinear(10, 3, 4, 2, q_head_dim=6, ctx=_context(1, 2), prefix="qkv_proj")
    assert (layer.q_size, layer.kv_size, layer.out_features) == (12, 3, 18)
    assert placements_of(layer.weight)["q"].shape == (24, 10)
    assert placements_of(layer.weight)["k"].shape == (6, 10)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda c: QKVParallelLinear(8, 2, 6, 2, ctx=c, prefix="a.qkv_proj"), "a.qkv_proj num_heads 6"),
        (lambda c: QKVParallelLinear(8, 2, 8, 3, ctx=c, prefix="a.qkv_proj"), "a.qkv_proj: 4 ranks .* 3 KV heads"),
        (lambda c: QKVParallelLinear(8, 2, 12, 6, ctx=c, prefix="a.qkv_proj"), "a.qkv_proj num_kv_heads 6"),
        (lambda c: RowParallelLinear(6, 2, ctx=c, prefix="a.o_proj"), "a.o_proj in_features 6 .* 4 ranks"),
        (lambda c: ColumnParallelLinear(2, 6, ctx=c, prefix="a.up_proj"), "a.up_proj out_features 6 .* 4 ranks"),
        (lambda c: MergedColumnParallelLinear(2, [8], ctx=c, prefix="a.b"), "a.b: 1 parts but the names"),
        (lambda c: Attention(5, 4, 2, 1.0, ctx=c, prefix="a.attn"), "a.attn: 5 query heads .* 2 KV heads"),
        (lambda c: Attention(4, 4, 2, 1.0, window=0, ctx=c, prefix="a.attn"), "a.attn: window .* got 0"),
    ],
)
def test_shapes_that_do_not_divide_are_named(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(_context(0, 4))


@pytest.mark.parametrize("vocab", [1, 64, 131, 200])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_embedding_and_head_for_any_vocabulary(vocab: int, size: int) -> None:
    table, weight, bias = _randn(vocab, 6), _randn(vocab, 6, seed=1), _randn(vocab, seed=2)
    ids = torch.arange(vocab, dtype=torch.int32).flip(0)
    hidden = _randn(3, 6, seed=3)
    embedded, logits = torch.zeros(vocab, 6), []
    for rank in range(size):
        embedding = VocabParallelEmbedding(vocab, 6, ctx=_context(rank, size), prefix="embed_tokens")
        head = ParallelLMHead(vocab, 6, bias=True, ctx=_context(rank, size), prefix="lm_head")
        assert embedding.weight.shape == head.weight.shape and head.weight.shape[0] % 64 == 0
        _load(embedding.weight, **{"": table})
        _load(head.weight, **{"": weight})
        _load(head.bias, **{"": bias})
        embedded += embedding(ids)
        logits.append(head.method.apply(head, hidden, head.bias))
    assert torch.equal(embedded, table[ids.long()])
    torch.testing.assert_close(torch.cat(logits, -1)[:, :vocab], _linear(hidden, weight, bias))
    if size == 1:
        assert head(hidden).shape == (3, vocab)


def test_embedding_and_head_without_rows() -> None:
    embedding = VocabParallelEmbedding(131, 6, ctx=_context(1, 2), prefix="embed_tokens")
    head = ParallelLMHead(131, 6, ctx=_context(), prefix="lm_head")
    assert embedding(torch.empty(0, dtype=torch.int32)).shape == (0, 6)
    assert head(torch.empty(0, 6)).shape == (0, 131)


def test_tied_head_uses_what_is_loaded_into_the_embedding() -> None:
    with torch.device("meta"):
        model = nn.Module()
        model.embed_tokens = VocabParallelEmbedding(131, 6, ctx=_context(), prefix="embed_tokens")
        model.lm_head = ParallelLMHead(131, 6, ctx=_context(), prefix="lm_head")
        model.lm_head.tie_to(model.embed_tokens)
    assert [name for name, _ in model.named_parameters()] == ["embed_tokens.weight"]
    weight = _randn(192, 6)
    model.embed_tokens.weight = nn.Parameter(weight, requires_grad=False)
    model.lm_head.finalize()
    hidden = _randn(2, 6, seed=1)
    assert torch.equal(model.lm_head(hidden), _linear(hidden, weight)[:, :131])


def test_head_cannot_be_tied_to_another_size() -> None:
    head = ParallelLMHead(131, 6, ctx=_context(), prefix="lm_head")
    with pytest.raises(ValueError, match=r"lm_head \[192, 6\] cannot be tied to embed_tokens \[192, 8\]"):
        head.tie_to(VocabParallelEmbedding(131, 8, ctx=_context(), prefix="embed_tokens"))


class ScaledMethod(LinearMethod):
    """A toy quantisation: int8 rows and a scale per row, placed by the rows of the plain weight; packed transposed."""

    def create(self, layer: nn.Module, shape: LinearShape) -> None:
        codes = torch.empty(shape.out_features, shape.in_features, dtype=torch.int8)
        layer.register_parameter("codes", nn.Parameter(codes, requires_grad=False))
        layer.register_parameter("scale", nn.Parameter(torch.empty(shape.out_features), requires_grad=False))
        set_placements(layer.codes, shape.placements)
        rows = {
            part: Placement(shape=place.shape[:1], source=place.source[:1], target=place.target[:1])
            for part, place in shape.placements.items()
        }
        set_placements(layer.scale, rows)

    def finalize(self, layer: nn.Module) -> None:
        layer.packed = (layer.codes.float() * layer.scale[:, None]).T.contiguous()

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = x @ layer.packed
        return out if bias is None else out + bias


class ScaledHardware(ReferenceHardware):
    """Has a method of its own for what is quantised."""

    def linear_method(self, scheme: Scheme | None, prefix: str) -> LinearMethod:
        return super().linear_method(None, prefix) if scheme is None else ScaledMethod()


class AllButTheHead:
    """What a checkpoint says that ignores `lm_head`."""

    def scheme(self, prefix: str) -> Scheme | None:
        return None if prefix == "lm_head" else W8A8(dtype=torch.int8)

    def embedding_scheme(self, prefix: str) -> None:
        return None


@pytest.fixture
def quantised() -> dict[str, Any]:
    return {"hardware": ScaledHardware(), "quantization": AllButTheHead()}


def test_a_method_keeps_the_weight_in_its_own_form(quantised: dict[str, Any]) -> None:
    codes = torch.randint(-9, 9, (8, 6), dtype=torch.int8)
    scale, bias, x = _randn(8), _randn(8, seed=1), _randn(3, 6, seed=2)
    outputs = []
    for rank in range(2):
        layer = ColumnParallelLinear(6, 8, bias=True, ctx=_context(rank, 2, **quantised), prefix="proj")
        assert {name for name, _ in layer.named_parameters()} == {"codes", "scale", "bias"}
        _load(layer.codes, **{"": codes})
        _load(layer.scale, **{"": scale})
        _load(layer.bias, **{"": bias})
        layer.finalize()
        outputs.append(layer(x))
    torch.testing.assert_close(torch.cat(outputs, -1), _linear(x, codes.float() * scale[:, None], bias))


def test_a_layer_that_the_checkpoint_ignores_stays_plain(quantised: dict[str, Any]) -> None:
    head = ParallelLMHead(131, 6, ctx=_context(**quantised), prefix="lm_head")
    assert [name for name, _ in head.named_parameters()] == ["weight"]
    other = ParallelLMHead(131, 6, ctx=_context(**quantised), prefix="other_head")
    assert {name for name, _ in other.named_parameters()} == {"codes", "scale"}
    embedding = VocabParallelEmbedding(131, 6, ctx=_context(**quantised), prefix="embed_tokens")
    embedding.weight.data.copy_(_randn(192, 6))
    other.tie_to(embedding)
    other.finalize()
    assert [name for name, _ in other.named_parameters()] == ["weight"]
    assert torch.equal(other(_randn(2, 6, seed=1)), _linear(_randn(2, 6, seed=1), embedding.weight)[:, :131])


def test_norm_with_and_without_residual() -> None:
    norm = RMSNorm(6, 1e-5, unit_offset=True, ctx=_context())
    norm.weight.data = _randn(6, seed=1)
    x, residual = _randn(3, 6), _randn(3, 6, seed=2)
    normed, total = norm(x, residual)
    assert torch.equal(total, x + residual) and torch.equal(normed, norm(total))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm_with_and_without_a_bias(dtype: torch.dtype, bias: bool) -> None:
    norm = LayerNorm(6, 0.1, bias=bias, ctx=_context(dtype=dtype))
    for index, parameter in enumerate(norm.parameters()):
        parameter.data = _randn(6, seed=index + 1).to(dtype)
    assert [name for name, _ in norm.named_parameters()] == ["weight", "bias"][: 1 + bias]
    x = (_randn(3, 6) + 2).to(dtype)
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    expected = norm.weight.double() * centred / (centred.square().mean(-1, keepdim=True) + 0.1).sqrt()
    if norm.bias is not None:
        expected = expected + norm.bias.double()
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(norm(x).double(), expected, rtol=tolerance, atol=1e-6)
    assert norm(x).dtype == dtype


def test_activations_call_their_operators() -> None:
    x = _randn(3, 14)
    assert torch.equal(SiluAndMul()(x), torch.ops.trunnion.silu_and_mul(x))
    assert torch.equal(GeluTanhAndMul()(x), torch.ops.trunnion.gelu_tanh_and_mul(x))
    assert not torch.equal(SiluAndMul()(x), GeluTanhAndMul()(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gelu_is_the_exact_one(dtype: torch.dtype) -> None:
    x = torch.linspace(-6, 6, 501).to(dtype)
    expected = torch.nn.functional.gelu(x.double())
    tolerance = 1e-6 if dtype == torch.float32 else 2**-8
    torch.testing.assert_close(Gelu()(x).double(), expected, rtol=tolerance, atol=1e-6)
    assert Gelu()(x).dtype == dtype


def test_rotary_table_is_real_on_a_meta_model_and_as_long_as_requests() -> None:
    parameters = RopeParameters(max_position_embeddings=64, original_max_position_embeddings=64)
    with torch.device("meta"):
        rope = RotaryEmbedding(parameters, 8, 64, ctx=_context(max_model_len=20))
    assert rope.cos_sin_cache.shape == (20, 8) and rope.cos_sin_cache.device.type == "cpu"
    assert RotaryEmbedding(parameters, 8, 64, ctx=_context()).cos_sin_cache.shape == (64, 8)
    assert rope.state_dict() == {}
    q, k = rope(torch.zeros(2, dtype=torch.int32), _randn(2, 4, 8), _randn(2, 1, 8, seed=1))
    assert torch.equal(q, _randn(2, 4, 8)) and torch.equal(k, _randn(2, 1, 8, seed=1))


def test_unbound_attention_names_itself() -> None:
    layer = Attention(4, 8, 2, 0.5, ctx=_context(), prefix="model.layers.3.self_attn.attn")
    with pytest.raises(RuntimeError, match=r"'model\.layers\.3\.self_attn\.attn' is not bound to a group"):
        layer(_randn(1, 32), _randn(1, 16), _randn(1, 16))


class RecordingGroup:
    """Keeps what `run` was given and returns the queries."""

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: Any) -> torch.Tensor:
        self.seen = layer, q, k, v, sinks
        return q


@pytest.mark.parametrize("flat", [True, False], ids=["flat", "heads"])
def test_attention_hands_heads_to_its_group(flat: bool) -> None:
    layer = Attention(4, 8, 2, 0.5, sinks=True, ctx=_context(1, 2), prefix="attn")
    group = RecordingGroup()
    layer.bind(group, 5)  # type: ignore[arg-type]
    q, k, v = _randn(3, 4, 8), _randn(3, 2, 8, seed=1), _randn(3, 2, 8, seed=2)
    out = layer(*(x.flatten(1) if flat else x for x in (q, k, v)))
    assert torch.equal(out, q.flatten(1))
    index, *rows, sinks = group.seen
    assert index == 5 and sinks is layer.sinks
    assert all(torch.equal(got, want) for got, want in zip(rows, (q, k, v), strict=True))
    _load(layer.sinks, **{"": torch.arange(8.0)})
    assert layer.sinks.tolist() == [4, 5, 6, 7]
    assert layer.spec.has_sinks and layer.spec.num_qo_heads == 4
