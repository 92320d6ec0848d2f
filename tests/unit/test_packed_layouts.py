"""Weights alone in 4 and 8 bits: words as each format packs them, cuts, orders, what a checkpoint fuses, experts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.matrix import packed_checkpoint
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.linear import QKVParallelLinear, RowParallelLinear
from trunnion.layers.vocab_embedding import ParallelLMHead
from trunnion.ops.grouped_int import pack, unpack, unpack_wide
from trunnion.ops.registry import OPERATORS
from trunnion.reference.int_layouts import weight_recoding, zero_point_recoding
from trunnion.weights.name_map import WeightMap

from .one_scheme import context
from .packed_toys import (
    AWQ,
    EXPERT_MAP,
    FORMATS,
    FUSED,
    GPTQ,
    ORDERED,
    Experts,
    build,
    change,
    compressed,
    load,
    save,
    save_experts,
    scheme_of,
)


def test_the_order_of_awq() -> None:
    """Columns 0 ... 7 hold 0 ... 7: [0, 2, 4, 6, 1, 3, 5, 7] from the lowest bits on."""
    scheme = scheme_of(AWQ)
    stored = torch.tensor([[0x75316420], [0x64205317]], dtype=torch.int64).to(torch.int32)
    decoded = weight_recoding(scheme).decode(stored)
    assert unpack(decoded, 4).t().tolist() == [[0, 1, 2, 3, 4, 5, 6, 7], [7, 0, 1, 2, 3, 4, 5, 6]]
    assert zero_point_recoding(scheme).decode(stored).t().tolist() == unpack(decoded, 4).t().tolist()


def test_the_order_of_gptq_and_its_zero_points() -> None:
    """Words of inputs; the first format stores zero points less 1, of which the least is all ones."""
    word = torch.tensor([[0x76543210]], dtype=torch.int32)
    assert unpack(weight_recoding(scheme_of(GPTQ)).decode(word), 4).tolist() == [list(range(8))]
    zeros = torch.tensor([[0xF654321E - 2**32]], dtype=torch.int64).to(torch.int32)
    assert zero_point_recoding(scheme_of(GPTQ)).decode(zeros).t().tolist() == [[15, 2, 3, 4, 5, 6, 7, 0]]
    second = scheme_of(GPTQ | {"checkpoint_format": "gptq_v2"})
    assert zero_point_recoding(second).decode(zeros).t().tolist() == [[14, 1, 2, 3, 4, 5, 6, 15]]
    eight = scheme_of(GPTQ | {"bits": 8})
    assert zero_point_recoding(eight).decode(torch.tensor([[-2]], dtype=torch.int32)).flatten().tolist() == [
        255,
        0,
        0,
        0,
    ]


def test_the_words_of_compressed_tensors() -> None:
    """Made by compressed-tensors 0.20.1: pack_to_int32 of signed values, and along rows of zero points."""
    scheme = scheme_of(compressed(symmetric=False))
    signed = (torch.arange(16) * 7 + torch.arange(2)[:, None] * 5) % 16 - 8
    words = torch.tensor([[440163952, -1833642248], [1870767045, -418829491]], dtype=torch.int32)
    assert torch.equal(unpack(weight_recoding(scheme).decode(words), 4).long() - 8, signed)
    zeros = (torch.arange(8)[:, None] * 3 + torch.arange(2)) % 16 - 8
    decoded = zero_point_recoding(scheme).decode(torch.tensor([[1392285232, 1661839169]], dtype=torch.int32))
    assert torch.equal(decoded.long() - 8, zeros)


@pytest.mark.parametrize("bits", [4, 8])
def test_packing_and_back(bits: int) -> None:
    values = torch.randint(0, 2**bits, (3, 5, 14), dtype=torch.uint8)
    packed = pack(values, bits)
    assert torch.equal(unpack(packed, bits), values) and torch.equal(unpack_wide(packed, bits), values.float())
    assert torch.equal(pack(values.float(), bits), packed)
    assert packed.shape == (3, 5, 14 * bits // 8)


@pytest.mark.parametrize(
    ("name", "size"),
    # See test_an_order_cannot_be_cut.
    [(name, size) for name in FORMATS for size in (1, 2) if size == 1 or name not in ORDERED],
)
def test_numbers_come_back_on_every_rank(tmp_path: Path, name: str, size: int) -> None:
    settings = FORMATS[name]
    integers = save(tmp_path, settings)
    for rank in range(size):
        model = build(scheme_of(settings), rank, size)
        load(model, tmp_path)
        for fused, names in FUSED.items():
            whole = [integers[name].dense() for name in names]
            cut = [part.chunk(size, 1 if fused == "down_proj" else 0)[rank] for part in whole]
            assert torch.equal(getattr(model, fused).dense_weight(), torch.cat(cut)), fused


@pytest.mark.parametrize("settings", FORMATS.values(), ids=FORMATS)
def test_what_layers_compute(tmp_path: Path, settings: dict[str, Any]) -> None:
    integers = save(tmp_path, settings)
    model = build(scheme_of(settings))
    load(model, tmp_path)
    for fused, names in FUSED.items():
        dense = torch.cat([integers[name].dense() for name in names])
        x = torch.randn(2, 3, dense.shape[1])
        torch.testing.assert_close(getattr(model, fused)(x), x @ dense.T, rtol=1e-5, atol=1e-4)


def test_a_cut_within_a_group(tmp_path: Path) -> None:
    """Of 256 features two ranks have 128 each: half of a group."""
    settings = GPTQ | {"group_size": 256}
    integers = save(tmp_path, settings)
    model = build(scheme_of(settings), 1, 2)
    load(model, tmp_path)
    assert model.down_proj.int_group_size == 128 and model.down_proj.scales.shape == (72, 1)
    assert torch.equal(model.down_proj.dense_weight(), integers["down_proj"].dense()[:, 128:])


@pytest.mark.parametrize("name", ORDERED)
def test_a_reload_in_another_order_lies_where_the_first_one_did(tmp_path: Path, name: str) -> None:
    settings = FORMATS[name]
    model = build(scheme_of(settings))
    first, second = tmp_path / "first", tmp_path / "second"
    for folder, seed in ((first, 1), (second, 2)):
        folder.mkdir()
        save(folder, settings, seed)
    load(model, first)
    layer, x = model.down_proj, torch.randn(4, 256)
    place, once, weight = layer.feature_order.data_ptr(), layer(x), layer.dense_weight().clone()
    layer.finalize()
    assert torch.equal(layer(x), once) and torch.equal(layer.dense_weight(), weight)
    load(model, second)
    assert layer.feature_order.data_ptr() == place
    other = build(scheme_of(settings))
    load(other, second)
    assert torch.equal(layer(x), other.down_proj(x)) and not torch.equal(layer(x), once)


def test_a_bias_that_the_model_has_is_loaded(tmp_path: Path) -> None:
    integers = save(tmp_path, GPTQ)
    bias = torch.randn(72)
    change(tmp_path, down_proj__bias=bias)
    with torch.device("meta"):
        model = nn.Module()
        model.down_proj = RowParallelLinear(256, 72, bias=True, ctx=context(scheme_of(GPTQ)), prefix="down_proj")
    stored = load_file(tmp_path / "model.safetensors")
    save_file({name: tensor for name, tensor in stored.items() if "down" in name}, tmp_path / "model.safetensors")
    load(model, tmp_path)
    x = torch.randn(3, 256)
    expected = x @ integers["down_proj"].dense().T + bias
    torch.testing.assert_close(model.down_proj(x), expected, rtol=1e-5, atol=1e-4)


class FusedThere(nn.Module):
    """What a checkpoint fuses too."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(160, 24, 4, 2, ctx=ctx, prefix="qkv_proj")
        self.qkv_proj.keeps_dense_weight = True


@pytest.mark.parametrize("settings", [AWQ, GPTQ, compressed(symmetric=False)], ids=["awq", "gptq", "compressed"])
def test_what_a_checkpoint_fuses_is_cut(tmp_path: Path, settings: dict[str, Any]) -> None:
    weight = torch.randn(192, 160)
    integers = packed_checkpoint.quantise(weight, settings, "qkv_proj", torch.float16)
    found = packed_checkpoint.published(integers, settings)
    save_file({f"qkv_proj.{leaf}": tensor for leaf, tensor in found.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    with torch.device("meta"):
        model = FusedThere(context(scheme_of(settings), 1, 2))
    load(model, tmp_path, WeightMap(cut={"qkv_proj": ("q", "k", "v")}))
    own = torch.cat([part.chunk(2)[1] for part in integers.dense().split((96, 48, 48))])
    assert torch.equal(model.qkv_proj.dense_weight(), own)


@pytest.mark.parametrize("settings", [AWQ, GPTQ, compressed(symmetric=False)], ids=["awq", "gptq", "compressed"])
def test_what_a_checkpoint_fuses_may_be_some_of_the_parts(tmp_path: Path, settings: dict[str, Any]) -> None:
    weights = {"qk_proj": torch.randn(144, 160), "v_proj": torch.randn(48, 160)}
    integers = {n: packed_checkpoint.quantise(w, settings, n, torch.float16) for n, w in weights.items()}
    found = {n: packed_checkpoint.published(each, settings) for n, each in integers.items()}
    save_file(
        {f"{n}.{leaf}": t for n, leaves in found.items() for leaf, t in leaves.items()}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    with torch.device("meta"):
        model = FusedThere(context(scheme_of(settings)))
    load(model, tmp_path, WeightMap(fuse={"qkv_proj": {"q+k": "qk_proj", "v": "v_proj"}}))
    wanted = torch.cat([integers["qk_proj"].dense(), integers["v_proj"].dense()])
    assert torch.equal(model.qkv_proj.dense_weight(), wanted)


def test_a_head_in_few_bits_is_padded_with_zeros(tmp_path: Path) -> None:
    """136 tokens over 3 ranks."""
    integers = packed_checkpoint.quantise(torch.randn(136, 64), GPTQ, "lm_head", torch.float16)
    found = packed_checkpoint.published(integers, GPTQ)
    save_file({f"lm_head.{leaf}": tensor for leaf, tensor in found.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": GPTQ}))
    with torch.device("meta"):
        model = nn.Module()
        model.lm_head = ParallelLMHead(136, 64, ctx=context(scheme_of(GPTQ), 2, 3), prefix="lm_head")
    load(model, tmp_path)
    head, x = model.lm_head, torch.randn(3, 64)
    logits = head.method.apply(head, x, None)
    dense = integers.dense()[2 * head.shard.num_rows :]
    torch.testing.assert_close(logits[:, : len(dense)], x @ dense.T, rtol=1e-5, atol=1e-4)
    assert len(dense) < head.shard.num_rows and not logits[:, len(dense) :].any()


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ORDERED])
def test_experts_compute_what_their_dense_weights_do(tmp_path: Path, name: str, size: int) -> None:
    """Ranks cut the second weights of experts by groups, or within them."""
    dense = save_experts(tmp_path, FORMATS[name])
    x, weights = torch.randn(5, 64), torch.rand(5, 2)
    ids = torch.tensor([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0]])
    w13 = torch.stack([torch.cat(pair) for pair in zip(dense["gate_proj"], dense["up_proj"], strict=True)])
    expected = OPERATORS.reference("fused_experts")(x, w13, torch.stack(dense["down_proj"]), weights, ids)
    found = torch.zeros_like(expected)
    for rank in range(size):
        with torch.device("meta"):
            model = Experts(context(scheme_of(FORMATS[name]), rank, size))
        load(model, tmp_path, EXPERT_MAP)
        experts = model.mlp.experts
        found += experts.method.apply(experts, x, weights, ids)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_the_truth_is_close_to_what_was_quantised() -> None:
    """Else every number could be wrong alike."""
    weight = torch.randn(64, 160)
    for settings in FORMATS.values():
        dense = packed_checkpoint.quantise(weight, settings, "a.b", torch.float32).dense()
        step = float(np.abs(weight.numpy()).max()) / (7 if scheme_of(settings).bits == 4 else 100)
        assert (dense - weight).abs().max() < step
