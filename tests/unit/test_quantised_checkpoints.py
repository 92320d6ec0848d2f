"""Quantised checkpoints: what their configs mean, whom they leave out, and scales that follow every cut of a weight."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.quantization import W8A8, Activations, BlockFP8, Scheme
from trunnion.layers.fused_moe import FusedMoE
from trunnion.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from trunnion.ops.quantised import dequantise_blocks, dequantise_rows, quantise
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import ExpertRule, WeightMap
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.quantization_of_layers import QuantizedLayers
from trunnion.weights.safetensors_source import SafetensorsSource

from .one_scheme import context

BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
E4M3 = torch.float8_e4m3fn
WEIGHT_MAP = WeightMap(
    experts=(ExpertRule(block="mlp.experts"),),
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
)


def compressed(ignore: list[str] | None = None, **changes: Any) -> dict[str, Any]:
    """As llm-compressor 0.10 writes it; `changes` are of the weights, `inputs` of the activations."""
    inputs = changes.pop("inputs", {})
    common = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "block_structure": None}
    group = {
        "targets": ["Linear"],
        "weights": common | {"strategy": "channel", "dynamic": False} | changes,
        "input_activations": common | {"strategy": "token", "dynamic": True} | inputs,
        "output_activations": None,
        "format": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"] if ignore is None else ignore,
        "sparsity_config": {},
        "transform_config": {},
    }


def read(settings: Mapping[str, Any]) -> Any:
    found = read_quantization({"quantization_config": settings})
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("settings", "scheme"),
    [
        (BLOCKS, BlockFP8()),
        ({"quant_method": "fp8", "activation_scheme": "static"},
         W8A8(dtype=E4M3, per_row=False, activations=Activations.STATIC)),
        (compressed(), W8A8(dtype=torch.int8)),
        (compressed(type="float", inputs={"type": "float"}), W8A8(dtype=E4M3)),
        (compressed(type="float", strategy="tensor",
                    inputs={"type": "float", "strategy": "tensor", "dynamic": False}),
         W8A8(dtype=E4M3, per_row=False, activations=Activations.STATIC)),
        (compressed(type="float", strategy="block", block_structure=[128, 128],
                    inputs={"type": "float", "strategy": "group", "group_size": 128}),
         BlockFP8(scale_name="weight_scale")),
    ],
    ids=["blocks", "tensor", "int8", "rows", "static", "compressed-blocks"],
)  # fmt: skip
def test_schemes(settings: Mapping[str, Any], scheme: Scheme) -> None:
    found = read(settings)
    assert found.scheme_of("model.layers.0.mlp.down_proj") == scheme and found.scheme_of("lm_head") is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"quant_method": "aqlm"}, "quant_method 'aqlm'.*supported: fp8, compressed-tensors, awq, gptq, mxfp4"),
        ({"quant_method": "modelopt"}, "'modelopt'"),
        ({"quant_method": "bitsandbytes"}, "'bitsandbytes'"),
        (BLOCKS | {"weight_block_size": [64, 128]}, r"weight_block_size \[64, 128\].*\[128, 128\]"),
        (BLOCKS | {"activation_scheme": "static"}, "activation_scheme 'static'.*'dynamic'"),
        (BLOCKS | {"scale_fmt": "ue8m0"}, "scale_fmt 'ue8m0'"),
        (compressed(num_bits=4), "num_bits 4.*choices: 8"),
        (compressed(strategy="group"), "strategy 'group'.*'channel', 'tensor', 'block'"),
        (compressed(symmetric=False), "symmetric False"),
        (compressed(inputs={"num_bits": 4}), "input_activations num_bits 4"),
        (compressed() | {"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized'.*'int-quantized'"),
        (compressed() | {"format": "pack-quantized"}, "input_activations in format 'pack-quantized'"),
        (compressed() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config"),
        ({"quant_method": "compressed-tensors"}, "no config_groups"),
    ],
)
def test_what_is_not_read_is_refused_in_one_line_with_the_choices(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(UnsupportedError, match=expected) as caught:
        read_quantization({"quantization_config": settings})
    assert "\n" not in str(caught.value)


def test_weights_alone_are_refused() -> None:
    settings = compressed()
    settings["config_groups"]["group_0"]["input_activations"] = None
    with pytest.raises(UnsupportedError, match="W8A16"):
        read(settings)


@pytest.mark.parametrize(
    ("settings", "module", "is_left_out"),
    [
        (BLOCKS | {"modules_to_not_convert": ["model.layers.1"]}, "model.layers.1.mlp.up_proj", True),
        (BLOCKS | {"modules_to_not_convert": ["model.layers.1"]}, "model.layers.10.mlp.up_proj", False),
        (BLOCKS | {"ignored_layers": ["o_proj"]}, "model.layers.1.self_attn.o_proj", True),
        (BLOCKS | {"modules_to_not_convert": ["mlp.gate"]}, "model.layers.1.mlp.gate_proj", False),
        (compressed(["re:.*self_attn.*"]), "model.layers.0.self_attn.q_proj", True),
        (compressed(["re:self_attn.*"]), "model.layers.0.self_attn.q_proj", False),
        (compressed(["o_proj"]), "model.layers.0.self_attn.o_proj", False),
        (compressed(["model.layers.0.self_attn.o_proj"]), "model.layers.0.self_attn.o_proj", True),
    ],
)
def test_ignore_lists(settings: dict[str, Any], module: str, is_left_out: bool) -> None:
    assert (read(settings).scheme_of(module) is None) == is_left_out


def layers(settings: dict[str, Any], *modules: str) -> QuantizedLayers:
    return QuantizedLayers(read(settings), WEIGHT_MAP, [f"{module}.weight" for module in modules])


def test_ignore_lists_speak_the_checkpoint_s_names() -> None:
    """A decoder inside a multimodal model is named otherwise here, and its projections are one layer."""
    base = "model.language_model.layers.0"
    names = [f"{base}.self_attn.{part}_proj" for part in "qkv"] + [f"{base}.mlp.experts.{e}.up_proj" for e in range(2)]
    found = layers(compressed([f"re:{base}.self_attn.*"]), *names)
    assert found.scheme("model.layers.0.self_attn.qkv_proj") is None
    assert found.scheme("model.layers.0.mlp.experts") == W8A8(dtype=torch.int8)
    assert found.scheme("model.layers.0.mlp.down_proj") is None


def test_parts_of_one_layer_are_quantised_alike() -> None:
    names = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    found = layers(compressed(["re:.*v_proj"]), *names)
    with pytest.raises(UnsupportedError, match=r"qkv_proj is one layer.*q_proj: W8A8.*v_proj: unquantised"):
        found.scheme("model.layers.0.self_attn.qkv_proj")


def test_rounding_is_per_group_to_even_and_within_range() -> None:
    x = torch.tensor([[127.0, 2.5, -3.5, 254.0, 0.0, 1.0]])
    values, scales = quantise(x, torch.int8, 3)
    assert values.tolist() == [[127, 2, -4, 127, 0, 0]] and scales.tolist() == [[1.0, 2.0]]
    values, scales = quantise(x, torch.int8, None, torch.tensor([0.5]))
    assert values.tolist() == [[127, 5, -7, 127, 0, 2]] and scales.tolist() == [[0.5]]
    values, scales = quantise(torch.zeros(2, 5), E4M3, 128)
    assert values.float().abs().max() == 0 and scales.shape == (2, 1) and scales.min() > 0


class Toy(nn.Module):
    """One layer of each kind. Rows and columns are no multiples of 128."""

    def __init__(self, ctx: BuildContext) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(200, 48, 4, 2, ctx=ctx, prefix="qkv_proj")
        self.gate_up_proj = MergedColumnParallelLinear(200, [320, 320], ctx=ctx, prefix="gate_up_proj")
        self.down_proj = RowParallelLinear(320, 72, ctx=ctx, prefix="down_proj")
        self.mlp = nn.Module()
        self.mlp.experts = FusedMoE(2, 1, 136, 192, renormalize=True, ctx=ctx, prefix="mlp.experts")


SIZES = {
    "q_proj": (192, 200), "k_proj": (96, 200), "v_proj": (96, 200), "gate_proj": (320, 200), "up_proj": (320, 200),
    "down_proj": (72, 320),
    **{f"mlp.experts.{e}.{part}_proj": size for e in range(2)
       for part, size in {"gate": (192, 136), "up": (192, 136), "down": (136, 192)}.items()},
}  # fmt: skip


def save(folder: Path, scheme: Scheme) -> dict[str, torch.Tensor]:
    """A checkpoint of `Toy`, and its weights made dense."""
    generator = torch.Generator().manual_seed(0)
    stored, dense = {}, {}
    for name, (rows, columns) in SIZES.items():
        weight = torch.randn(rows, columns, generator=generator)
        if isinstance(scheme, BlockFP8):
            scale = torch.rand(-(-rows // 128), -(-columns // 128), generator=generator) + 0.1
            stored[f"{name}.weight"] = weight.to(E4M3)
            spread = scale[torch.arange(rows)[:, None] // 128, torch.arange(columns) // 128]
            dense[name] = stored[f"{name}.weight"].float() * spread
        else:
            scale = torch.rand(*((rows, 1) if scheme.per_row else (1,)), generator=generator) + 0.1
            stored[f"{name}.weight"] = (weight * 40).to(scheme.dtype)
            dense[name] = dequantise_rows(stored[f"{name}.weight"], scale.flatten().expand(rows))
        stored[f"{name}.{getattr(scheme, 'scale_name', 'weight_scale')}"] = scale
        if isinstance(scheme, W8A8) and scheme.activations is Activations.STATIC and "experts" not in name:
            stored[f"{name}.input_scale"] = torch.tensor([len(name) / 100])
    save_file(stored, folder / "model.safetensors")
    settings = BLOCKS if isinstance(scheme, BlockFP8) else compressed()
    (folder / "config.json").write_text(json.dumps({"quantization_config": settings}))
    return dense


def load(folder: Path, scheme: Scheme, rank: int = 0, size: int = 1) -> Toy:
    with torch.device("meta"):
        model = Toy(context(scheme, rank, size))
        model.down_proj.keeps_dense_weight = model.qkv_proj.keeps_dense_weight = True
    load_weights(model, SafetensorsSource(folder), WEIGHT_MAP, dtype=torch.float32, device=torch.device("cpu"))
    return model


def dense_experts(model: Toy, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """w13 and w2 of the second expert."""
    experts = model.mlp.experts
    if isinstance(scheme, BlockFP8):
        rows, columns = experts.w13_scale_rows, experts.w2_scale_columns
        return (
            dequantise_blocks(experts.w13[1], experts.w13_weight_scale_inv[1], rows, 128),
            dequantise_blocks(experts.w2[1], experts.w2_weight_scale_inv[1], 128, columns),
        )
    return dequantise_rows(experts.w13[1], experts.w13_weight_scale[1]), dequantise_rows(
        experts.w2[1], experts.w2_weight_scale[1]
    )


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "scheme",
    [BlockFP8(), W8A8(dtype=torch.int8), W8A8(dtype=E4M3, per_row=False)],
    ids=["blocks", "rows", "tensor"],
)
def test_scales_follow_every_cut(tmp_path: Path, scheme: Scheme, size: int) -> None:
    """Two ranks cut within blocks: a scale of the checkpoint is several here."""
    dense = save(tmp_path, scheme)
    for rank in range(size):
        model = load(tmp_path, scheme, rank, size)
        parts = {name: weight.chunk(size)[rank] for name, weight in dense.items()}
        wanted = torch.cat([parts["q_proj"], parts["k_proj"], parts["v_proj"]])
        assert torch.equal(model.qkv_proj.dense_weight(), wanted)
        assert torch.equal(model.down_proj.dense_weight(), dense["down_proj"].chunk(size, 1)[rank])
        w13, w2 = dense_experts(model, scheme)
        assert torch.equal(w13, torch.cat([parts["mlp.experts.1.gate_proj"], parts["mlp.experts.1.up_proj"]]))
        assert torch.equal(w2, dense["mlp.experts.1.down_proj"].chunk(size, 1)[rank])


class Fused(nn.Module):
    """A layer whose checkpoint holds q, k and v as one, as Phi-3's does."""

    def __init__(self, ctx: BuildContext, head_dim: int = 48) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(200, head_dim, 4, 2, ctx=ctx, prefix="qkv_proj")
        self.qkv_proj.keeps_dense_weight = True


def load_fused(folder: Path, scheme: Scheme, rank: int, size: int, *, head_dim: int = 48) -> Fused:
    weight_map = WeightMap(cut={"qkv_proj": ("q", "k", "v")})
    with torch.device("meta"):
        model = Fused(context(scheme, rank, size), head_dim)
    load_weights(model, SafetensorsSource(folder), weight_map, dtype=torch.float32, device=torch.device("cpu"))
    return model


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    "shape", [(384, 1), (384,), (1,), ()], ids=["column", "per row", "one", "one without dimension"]
)
def test_scales_of_a_tensor_that_is_fused_in_the_checkpoint_follow_its_parts(
    tmp_path: Path, shape: tuple[int, ...], size: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randint(-127, 128, (384, 200), generator=generator, dtype=torch.int8)
    scale = torch.rand(shape, generator=generator) + 0.1
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": compressed()}))
    save_file({"qkv_proj.weight": weight, "qkv_proj.weight_scale": scale}, tmp_path / "model.safetensors")
    dense = (weight * scale.reshape(-1, 1)).split([192, 96, 96])
    for rank in range(size):
        model = load_fused(tmp_path, W8A8(dtype=torch.int8, per_row=scale.numel() > 1), rank, size)
        wanted = torch.cat([part.chunk(size)[rank] for part in dense])
        assert torch.equal(model.qkv_proj.dense_weight(), wanted)


@pytest.mark.parametrize("size", [1, 2])
def test_blocks_within_the_parts_of_a_fused_tensor_follow_them(tmp_path: Path, size: int) -> None:
    """Two blocks of rows of q, one of k and of v; a rank of two has a half of each of these."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(512, 200, generator=generator).to(E4M3)
    scale = torch.rand(4, 2, generator=generator) + 0.1
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": BLOCKS}))
    save_file({"qkv_proj.weight": weight, "qkv_proj.weight_scale_inv": scale}, tmp_path / "model.safetensors")
    spread = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:, :200]
    dense = (weight.float() * spread).split([256, 128, 128])
    for rank in range(size):
        model = load_fused(tmp_path, BlockFP8(), rank, size, head_dim=64)
        wanted = torch.cat([part.chunk(size)[rank] for part in dense])
        assert torch.equal(model.qkv_proj.dense_weight(), wanted)


def test_blocks_that_lie_in_two_parts_of_a_fused_tensor_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": BLOCKS}))
    tensors = {"qkv_proj.weight": torch.zeros(384, 200).to(E4M3), "qkv_proj.weight_scale_inv": torch.ones(3, 2)}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedError, match=r"qkv_proj\.weight_scale_inv: blocks across the parts q, k, v"):
        load_fused(tmp_path, BlockFP8(), 0, 1)


def test_what_a_layer_computes(tmp_path: Path) -> None:
    dense = save(tmp_path, BlockFP8())
    model = load(tmp_path, BlockFP8())
    x = torch.randn(3, 200)
    values, scales = quantise(x, E4M3, 128)
    rounded = values.float() * scales.repeat_interleave(128, 1)[:, :200]
    out = model.gate_up_proj(x)
    torch.testing.assert_close(out, rounded @ torch.cat([dense["gate_proj"], dense["up_proj"]]).T)
    assert (out - x @ torch.cat([dense["gate_proj"], dense["up_proj"]]).T).abs().max() > 0.1


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
@pytest.mark.parametrize(
    ("weights", "inputs"),
    [("weight_scale", "input_scale"), ("weight_scale_inv", "activation_scale")],
    ids=["AutoFP8", "transformers"],
)
def test_static_scales_have_two_names(tmp_path: Path, weights: str, inputs: str, shape: tuple[int, ...]) -> None:
    stored, dense = {}, []
    for index, (name, rows) in enumerate({"q_proj": 192, "k_proj": 96, "v_proj": 96}.items()):
        stored[f"{name}.weight"] = torch.randn(rows, 200).to(E4M3)
        stored[f"{name}.{weights}"] = torch.full(shape, 0.5 + index)
        stored[f"{name}.{inputs}"] = torch.full(shape, 1.5 + index)
        dense.append(stored[f"{name}.weight"].float() * (0.5 + index))
    save_file(stored, tmp_path / "model.safetensors")
    settings = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": settings}))
    scheme = read(settings).scheme_of("q_proj")
    with torch.device("meta"):
        model = Fused(context(scheme))
    load_weights(model, SafetensorsSource(tmp_path), WEIGHT_MAP, dtype=torch.float32, device=torch.device("cpu"))
    assert torch.equal(model.qkv_proj.dense_weight(), torch.cat(dense))
    assert model.qkv_proj.input_scale.tolist() == [1.5, 2.5, 3.5]


def test_a_scale_under_both_of_its_names_is_a_duplicate(tmp_path: Path) -> None:
    save(tmp_path, scheme := W8A8(dtype=E4M3, per_row=False))
    stored = load_file(tmp_path / "model.safetensors")
    stored["down_proj.weight_scale_inv"] = stored["down_proj.weight_scale"].clone()
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"duplicated.*down_proj\.weight_scale_inv"):
        load(tmp_path, scheme)


def test_the_largest_static_scale_serves_all_parts_and_addresses_stay(tmp_path: Path) -> None:
    scheme = W8A8(dtype=E4M3, activations=Activations.STATIC)
    with pytest.raises(UnsupportedError, match=r"experts with static scales.*dynamic"):
        load(tmp_path, scheme)
    layer = QKVParallelLinear(64, 8, 4, 2, ctx=context(scheme), prefix="p")
    layer.keeps_dense_weight = True
    layer.input_scale.copy_(torch.tensor([0.5, 0.25, 0.125]))
    layer.finalize()
    addresses = layer.activation_scale.data_ptr(), layer.dense_weight().data_ptr()
    assert layer.activation_scale.tolist() == [0.5]
    layer.input_scale.copy_(torch.tensor([0.5, 0.25, 0.75]))
    layer.finalize()
    assert layer.activation_scale.tolist() == [0.75]
    assert (layer.activation_scale.data_ptr(), layer.dense_weight().data_ptr()) == addresses


def test_a_cut_that_no_tensor_core_can_follow_is_refused_with_the_numbers() -> None:
    ctx = context(BlockFP8(), 1, 8)
    with pytest.raises(UnsupportedError, match="down_proj: this rank's columns start at 40, within a block of 128"):
        RowParallelLinear(320, 72, ctx=ctx, prefix="down_proj")


def test_published_widths_are_cut_on_blocks_or_within() -> None:
    """576 rows end within a block; 512 experts' features over 8 ranks leave 64 to each."""
    ctx = context(BlockFP8(), 3, 8, dtype=torch.bfloat16)
    with torch.device("meta"):
        down = RowParallelLinear(512, 576, ctx=ctx, prefix="down_proj")
        wide = RowParallelLinear(16384, 7168, ctx=ctx, prefix="o_proj")
    assert (down.scale_rows, down.scale_columns, down.weight_scale_inv.shape) == (128, 64, (5, 1))
    assert (wide.scale_rows, wide.scale_columns, wide.weight_scale_inv.shape) == (128, 128, (56, 16))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda stored: stored.pop("q_proj.weight_scale_inv"), "1 missing: q_proj.weight_scale_inv"),
        (lambda stored: stored.pop("mlp.experts.1.up_proj.weight_scale_inv"),
         "1 missing: mlp.experts.1.up_proj.weight_scale_inv"),
        (lambda stored: stored.update({"down_proj.weight": torch.zeros(72, 320)}),
         "wrong dtype: down_proj.weight .F32 for float8_e4m3fn: unquantised"),
        (lambda stored: stored.update({"down_proj.weight_scale_inv": torch.zeros(3, 1)}),
         r"wrong shape: down_proj.weight_scale_inv \[3, 1\] \(the model wants \[1, 3\]\)"),
        (lambda stored: stored.update({"down_proj.weight_scale": torch.zeros(1)}),
         "1 unexpected: down_proj.weight_scale"),
    ],
    ids=["scale missing", "expert's scale missing", "not quantised", "scale transposed", "another scale"],
)  # fmt: skip
def test_tensors_and_scales_add_up(tmp_path: Path, change: Any, expected: str) -> None:
    save(tmp_path, BlockFP8())
    stored = load_file(tmp_path / "model.safetensors")
    change(stored)
    save_file(stored, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=expected):
        load(tmp_path, BlockFP8())
