"""Checkpoints of a few layers in 4 and 8 bits, as each format publishes them, and models that load them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.matrix import packed_checkpoint
from tests.matrix.packed_checkpoint import Integers
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.quantization import GroupedInt, Scheme
from trunnion.layers.fused_moe import FusedMoE
from trunnion.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import ExpertRule, WeightMap
from trunnion.weights.quantization_config import read_quantization
from trunnion.weights.report import WeightReport
from trunnion.weights.safetensors_source import SafetensorsSource

from .one_scheme import context

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
