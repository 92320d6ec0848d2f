"""Weights alone in 4 and 8 bits: what their configs mean, words as each format packs them, cuts, orders, leftovers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.matrix import packed_checkpoint
from tests.matrix.packed_checkpoint import Integers
from torch import nn

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.quantization import GroupedInt, IntLayout, Scheme
from trunnion.layers.fused_moe import FusedMoE
from trunnion.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from trunnion.layers.vocab_embedding import ParallelLMHead
from trunnion.ops.grouped_int import pack, unpack, unpack_wide
from trunnion.ops.registry import OPERATORS
from trunnion.reference import ReferenceHardware
from trunnion.reference.int_layouts import weight_recoding, zero_point_recoding
from trunnion.weights.checkpoint import open_checkpoint
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import ExpertRule, WeightMap
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.quantization_of_layers import QuantizedLayers
from trunnion.weights.report import WeightReport
from trunnion.weights.safetensors_source import SafetensorsSource

WEIGHT_MAP = WeightMap(
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    }
)
SIZES = {
    "q_proj": (96, 160), "k_proj": (48, 160), "v_proj": (48, 160), "gate_proj": (128, 160), "up_proj": (128, 160),
    "down_proj": (72, 256),
}  # fmt: skip
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "down_proj": ("down_proj",),
}
DEVICE = torch.device("cpu")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}


def compressed(bits: int = 4, group_size: int | None = 32, **weights: Any) -> dict[str, Any]:
    """As llm-compressor writes it; `weights` are changes of the weights' settings."""
    settings = {
        "num_bits": bits, "type": "int", "strategy": "channel" if group_size is None else "group",
        "group_size": group_size, "symmetric": True, "actorder": None, "dynamic": False,
    } | weights  # fmt: skip
    group = {"targets": ["Linear"], "weights": settings, "input_activations": None, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


FORMATS = {
    "compressed": compressed(),
    "compressed-asymmetric": compressed(symmetric=False),
    "compressed-ordered": compressed(symmetric=False, actorder="group"),
    "compressed-8-rows": compressed(8, None),
    "awq": AWQ,
    "gptq": GPTQ,
    "gptq-8-rows": GPTQ | {"bits": 8, "group_size": -1, "desc_act": True},
    "gptq-last-group-short": GPTQ | {"group_size": 128},
    "gptq-v2-ordered": GPTQ | {"desc_act": True, "checkpoint_format": "gptq_v2"},
}
ORDERED = ("compressed-ordered", "gptq-v2-ordered")


def scheme_of(settings: Mapping[str, Any]) -> GroupedInt:
    found = read_quantization({"quantization_config": settings})
    assert found is not None
    scheme = found.scheme_of("model.layers.0.mlp.down_proj")
    assert isinstance(scheme, GroupedInt)
    return scheme


# What configs say


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (compressed(), GroupedInt(bits=4, group_size=32, has_zero_points=False, layout=IntLayout.COMPRESSED)),
        (compressed(8, None, symmetric=False),
         GroupedInt(bits=8, group_size=None, has_zero_points=True, layout=IntLayout.COMPRESSED)),
        (compressed(actorder="weight"),
         GroupedInt(bits=4, group_size=32, has_zero_points=False, layout=IntLayout.COMPRESSED)),
        (compressed(actorder="group"),
         GroupedInt(bits=4, group_size=32, has_zero_points=False, is_ordered=True, layout=IntLayout.COMPRESSED)),
        (AWQ, GroupedInt(bits=4, group_size=32, has_zero_points=True, layout=IntLayout.AWQ)),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM"},
         GroupedInt(bits=4, group_size=128, has_zero_points=True, layout=IntLayout.AWQ)),
        (GPTQ, GroupedInt(bits=4, group_size=32, has_zero_points=True, layout=IntLayout.GPTQ)),
        (GPTQ | {"checkpoint_format": "gptq_v2", "desc_act": True},
         GroupedInt(bits=4, group_size=32, has_zero_points=True, is_ordered=True, layout=IntLayout.GPTQ_V2)),
        # One group holds all features, whatever their order.
        (GPTQ | {"group_size": -1, "desc_act": True},
         GroupedInt(bits=4, group_size=None, has_zero_points=True, layout=IntLayout.GPTQ)),
    ],
)  # fmt: skip
def test_schemes(settings: Mapping[str, Any], expected: Scheme) -> None:
    assert scheme_of(settings) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (compressed(3), "num_bits 3.*choices: 4, 8"),
        (compressed(group_size=48), "group_size 48.*choices: 32, 64"),
        (compressed(strategy="tensor"), "strategy 'tensor'.*choices: 'channel', 'group'"),
        (compressed(type="float"), "type 'float'"),
        (compressed(actorder="random"), "actorder 'random'"),
        (AWQ | {"bits": 3}, "awq: bits 3 is not supported; choices: 4"),
        (AWQ | {"version": "gemv"}, "version 'gemv'.*choices: 'gemm'"),
        (AWQ | {"zero_point": False}, "zero_point False"),
        (AWQ | {"group_size": 100}, "group_size 100"),
        (GPTQ | {"bits": 3}, "gptq: bits 3 is not supported; choices: 4, 8"),
        (GPTQ | {"bits": 2}, "bits 2"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'.*choices: 'gptq', 'gptq_v2'"),
        (GPTQ | {"is_marlin_format": True}, "checkpoint_format 'marlin'"),
        (GPTQ | {"dynamic": {"-:.*gate": {}, "+:.*down": {"bits": 8}}}, "dynamic settings for '\\+:.*down'"),
        (compressed() | {"kv_cache_scheme": {"num_bits": 8, "type": "int", "strategy": "tensor"}},
         "kv_cache_scheme: type 'int'.*choices: 'float'"),
        (compressed() | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "attn_head"}},
         "kv_cache_scheme: strategy 'attn_head'.*choices: 'tensor'"),
        (compressed() | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": True}},
         "kv_cache_scheme: dynamic True"),
    ],
)  # fmt: skip
def test_what_is_not_read_is_refused_in_one_line_with_the_choices(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedError, match=expected) as caught:
        read_quantization({"quantization_config": settings})
    assert "\n" not in str(caught.value)


def test_a_cache_scheme_says_that_there_are_scales() -> None:
    settings = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    for scheme, expected in ((None, False), (settings, True)):
        found = read_quantization({"quantization_config": compressed() | {"kv_cache_scheme": scheme}})
        assert found is not None and found.has_cache_scales == expected


@pytest.mark.parametrize("settings", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_tensors_tell_what_is_quantised(settings: dict[str, Any]) -> None:
    """GPTQ has no list of what it leaves out, and AWQ's says nothing of the head."""
    config = read_quantization({"quantization_config": settings})
    assert config is not None
    names = ["lm_head.weight", "mlp.gate.weight", "q_proj.qweight", "q_proj.scales", "k_proj.qweight", "v_proj.qweight"]
    found = QuantizedLayers(config, WEIGHT_MAP, names)
    assert found.scheme("lm_head") is None and found.scheme("mlp.gate") is None
    assert found.scheme("qkv_proj") == scheme_of(settings)
    mixed = QuantizedLayers(config, WEIGHT_MAP, ["q_proj.qweight", "k_proj.weight", "v_proj.qweight"])
    with pytest.raises(UnsupportedError, match=r"qkv_proj is one layer here.*k_proj: unquantised"):
        mixed.scheme("qkv_proj")


# Files beside config.json


SIDECAR = {
    "bits": 4, "group_size": 128, "damp_percent": 0.01, "desc_act": True, "sym": True, "true_sequential": True,
    "model_name_or_path": None, "model_file_base_name": "gptq_model-4bit-128g",
}  # fmt: skip


def folder_with(folder: Path, config: dict[str, Any], **side_files: dict[str, Any]) -> Path:
    save_file({"a": torch.zeros(1)}, folder / "gptq_model-4bit-128g.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    for name, content in side_files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_settings_beside_the_config_are_read(tmp_path: Path) -> None:
    """As in uploads of 2023; a file of tensors may have any name."""
    checkpoint = open_checkpoint(folder_with(tmp_path, {}, quantize_config=SIDECAR))
    found = read_quantization(checkpoint.config)
    assert found is not None and found.rules[0].scheme == GroupedInt(
        bits=4, group_size=128, has_zero_points=True, is_ordered=True, layout=IntLayout.GPTQ
    )
    assert list(checkpoint.source.infos) == ["a"]


def test_awqs_own_file_is_read(tmp_path: Path) -> None:
    settings = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
    found = read_quantization(open_checkpoint(folder_with(tmp_path, {}, quant_config=settings)).config)
    assert found is not None and found.method == "awq"


def test_a_config_and_a_file_beside_it_must_agree(tmp_path: Path) -> None:
    own = {"quantization_config": GPTQ | {"group_size": 128, "desc_act": True, "checkpoint_format": "gptq_v2"}}
    found = read_quantization(open_checkpoint(folder_with(tmp_path, own, quantize_config=SIDECAR)).config)
    assert found is not None and found.rules[0].scheme.layout is IntLayout.GPTQ_V2  # type: ignore[union-attr]
    (tmp_path / "quantize_config.json").write_text(json.dumps(SIDECAR | {"bits": 8}))
    with pytest.raises(UnsupportedError, match=r"bits is 4 in .*config\.json and 8 in quantize_config\.json"):
        open_checkpoint(tmp_path)


# Words


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


# Checkpoints


class OfOneScheme:
    def __init__(self, scheme: Scheme) -> None:
        self._scheme = scheme

    def scheme(self, prefix: str) -> Scheme:
        return self._scheme


class Toy(nn.Module):
    """One layer of each kind."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(160, 24, 4, 2, ctx=ctx, prefix="qkv_proj")
        self.gate_up_proj = MergedColumnParallelLinear(160, [128, 128], ctx=ctx, prefix="gate_up_proj")
        self.down_proj = RowParallelLinear(256, 72, ctx=ctx, prefix="down_proj")


def save(folder: Path, settings: Mapping[str, Any], seed: int = 0) -> dict[str, Integers]:
    """A checkpoint of `Toy` as it would be published, and its numbers."""
    generator = torch.Generator().manual_seed(seed)
    integers, stored = {}, {}
    for name, size in SIZES.items():
        # Modules are told apart by what they read: those of one layer here have one order there.
        module = f"mlp{seed}.{name}"
        weight = torch.randn(size, generator=generator)
        integers[name] = packed_checkpoint.quantise(weight, settings, module, torch.float16)
        found = packed_checkpoint.published(integers[name], settings)
        stored |= {f"{name}.{leaf}": tensor for leaf, tensor in found.items()}
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return integers


def context(scheme: Scheme, rank: int = 0, size: int = 1) -> BuildContext:
    parallel = ParallelGroup(rank=rank, size=size)
    hardware, quantization = ReferenceHardware(), OfOneScheme(scheme)
    return BuildContext(hardware=hardware, dtype=torch.float32, parallel=parallel, quantization=quantization)


def build(scheme: Scheme, rank: int = 0, size: int = 1) -> Toy:
    with torch.device("meta"):
        model = Toy(context(scheme, rank, size))
    for name in FUSED:
        getattr(model, name).keeps_dense_weight = True
    return model


def load(model: nn.Module, folder: Path, weight_map: WeightMap = WEIGHT_MAP) -> WeightReport:
    return load_weights(model, SafetensorsSource(folder), weight_map, dtype=torch.float32, device=DEVICE)


def change(folder: Path, **tensors: torch.Tensor) -> None:
    """Put tensors into a checkpoint; `__` stands for a dot."""
    stored = load_file(folder / "model.safetensors")
    stored |= {name.replace("__", "."): tensor for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors")


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


def test_an_order_cannot_be_cut() -> None:
    with pytest.raises(UnsupportedError, match=r"down_proj: .*order.*g_idx.*cannot be cut.*choices: tp_size 1"):
        RowParallelLinear(256, 72, ctx=context(scheme_of(FORMATS["gptq-v2-ordered"]), 1, 2), prefix="down_proj")
    MergedColumnParallelLinear(160, [128], part_names=("",), ctx=context(scheme_of(FORMATS["gptq-v2-ordered"]), 1, 2),
                               prefix="up_proj")  # fmt: skip


def test_parts_of_one_layer_have_one_order(tmp_path: Path) -> None:
    save(tmp_path, FORMATS["gptq-v2-ordered"])
    groups = load_file(tmp_path / "model.safetensors")["k_proj.g_idx"]
    change(tmp_path, k_proj__g_idx=groups.flip(0).contiguous())
    with pytest.raises(UnsupportedError, match=r"qkv_proj\.g_idx: qkv_proj is one layer here"):
        load(build(scheme_of(FORMATS["gptq-v2-ordered"])), tmp_path)


@pytest.mark.parametrize("value", [0, 9, -7])
def test_groups_have_the_size_that_the_config_says(tmp_path: Path, value: int) -> None:
    save(tmp_path, FORMATS["gptq-v2-ordered"])
    groups = load_file(tmp_path / "model.safetensors")["down_proj.g_idx"]
    groups[groups == 3] = value
    change(tmp_path, down_proj__g_idx=groups)
    with pytest.raises(WeightsError, match=r"down_proj\.g_idx: expected groups of 32 features each"):
        load(build(scheme_of(FORMATS["gptq-v2-ordered"])), tmp_path)


def test_a_bias_of_zeros_is_no_bias(tmp_path: Path) -> None:
    save(tmp_path, GPTQ)
    report = load(build(scheme_of(GPTQ)), tmp_path)
    assert {name for name in report.known if name.endswith("bias")} == {f"{name}.bias" for name in SIZES}
    assert any("hold what they must" in line for line in report.lines())
    change(tmp_path, k_proj__bias=torch.tensor([0.0] * 47 + [0.5]))
    with pytest.raises(WeightsError, match=r"k_proj\.bias: expected zeros, since the model has no bias there"):
        load(build(scheme_of(GPTQ)), tmp_path)


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


@pytest.mark.parametrize(
    ("settings", "tensors", "expected"),
    [
        (GPTQ, {"q_proj__g_idx": torch.arange(160, dtype=torch.int32) % 5},
         r"q_proj\.g_idx: expected runs of 32 neighbours.*desc_act"),
        (compressed(), {"v_proj__weight_shape": torch.tensor([48, 159])},
         r"v_proj\.weight_shape: expected \[48, 160\]"),
        (GPTQ, {"q_proj__qweight": torch.zeros(40, 96, dtype=torch.int32)},
         r"wrong shape: q_proj.qweight \[40, 96\] \(the model wants \[20, 96\]\)"),
        (AWQ, {"q_proj__scales": torch.zeros(96, 5)}, r"q_proj.scales \[96, 5\] \(the model wants \[5, 96\]\)"),
        (AWQ, {"q_proj__qzeros": torch.zeros(5, 12)}, "wrong dtype: q_proj.qzeros .F32 for int32: unquantised"),
        (AWQ, {"q_proj__qweight": torch.zeros(160, 12)}, "wrong dtype: q_proj.qweight .F32 for int32: unquantised"),
        (AWQ, {"q_proj__g_idx": torch.zeros(160, dtype=torch.int32)}, "1 unexpected: q_proj.g_idx"),
        (compressed(), {"q_proj__weight_zero_point": torch.zeros(12, 5, dtype=torch.int32)},
         "1 unexpected: q_proj.weight_zero_point"),
        (compressed(), {"q_proj__weight": torch.zeros(96, 160)}, "1 unexpected: q_proj.weight"),
    ],
)  # fmt: skip
def test_tensors_add_up(
    tmp_path: Path, settings: dict[str, Any], tensors: dict[str, torch.Tensor], expected: str
) -> None:
    save(tmp_path, settings)
    change(tmp_path, **tensors)
    with pytest.raises(WeightsError, match=expected):
        load(build(scheme_of(settings)), tmp_path)


@pytest.mark.parametrize("leaf", ["qweight", "qzeros", "scales"])
def test_a_missing_tensor_is_named_as_the_checkpoint_would(tmp_path: Path, leaf: str) -> None:
    save(tmp_path, AWQ)
    stored = load_file(tmp_path / "model.safetensors")
    del stored[f"up_proj.{leaf}"]
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"1 missing: up_proj\.{leaf}"):
        load(build(scheme_of(AWQ)), tmp_path)


def test_what_does_not_fill_words_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"p: out_features 100 of 4 bits.*choices: multiples of 8"):
        RowParallelLinear(256, 100, ctx=context(scheme_of(AWQ)), prefix="p")
    with pytest.raises(UnsupportedError, match=r"p\[k\]: out_features 42 of 8 bits.*choices: multiples of 4"):
        QKVParallelLinear(64, 21, 4, 2, ctx=context(scheme_of(GPTQ | {"bits": 8})), prefix="p")


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


class Experts(nn.Module):
    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.mlp = nn.Module()
        self.mlp.experts = FusedMoE(3, 2, 64, 128, renormalize=True, ctx=ctx, prefix="mlp.experts")


EXPERT_SIZES = {"gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}
EXPERT_MAP = WeightMap(experts=(ExpertRule(block="mlp.experts"),))


def save_experts(folder: Path, settings: Mapping[str, Any]) -> dict[str, list[torch.Tensor]]:
    """A checkpoint of `Experts`, and its dense weights by projection."""
    dense: dict[str, list[torch.Tensor]] = {name: [] for name in EXPERT_SIZES}
    stored = {}
    for expert in range(3):
        for name, size in EXPERT_SIZES.items():
            integers = packed_checkpoint.quantise(torch.randn(size), settings, "experts", torch.float16)
            dense[name].append(integers.dense())
            found = packed_checkpoint.published(integers, settings)
            stored |= {f"mlp.experts.{expert}.{name}.{leaf}": tensor for leaf, tensor in found.items()}
    save_file(stored, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return dense


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


def test_experts_in_an_order_of_the_checkpoint_s_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"mlp\.experts: experts whose features.*g_idx.*choices"):
        Experts(context(scheme_of(FORMATS["gptq-v2-ordered"])))


def test_biases_of_experts_are_zeros(tmp_path: Path) -> None:
    save_experts(tmp_path, GPTQ)
    change(tmp_path, mlp__experts__1__down_proj__bias=torch.ones(64))
    with torch.device("meta"):
        model = Experts(context(scheme_of(GPTQ)))
    with pytest.raises(WeightsError, match=r"experts\.1\.down_proj\.bias: expected zeros"):
        load(model, tmp_path, EXPERT_MAP)


def test_the_truth_is_close_to_what_was_quantised() -> None:
    """Else every number could be wrong alike."""
    weight = torch.randn(64, 160)
    for settings in FORMATS.values():
        dense = packed_checkpoint.quantise(weight, settings, "a.b", torch.float32).dense()
        step = float(np.abs(weight.numpy()).max()) / (7 if scheme_of(settings).bits == 4 else 100)
        assert (dense - weight).abs().max() < step
