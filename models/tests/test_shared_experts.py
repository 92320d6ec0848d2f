"""Routed and shared experts of a block are summed over the ranks together, and are what transformers' block gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import DeepseekV2Config, DeepseekV3Config, Glm4MoeConfig, Qwen2MoeConfig, Qwen3NextConfig
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE as HFDeepseekV3MoE
from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE
from transformers.models.qwen2_moe.modeling_qwen2_moe import Qwen2MoeSparseMoeBlock as HFQwen2MoeBlock
from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock as HFQwen3NextBlock

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import NoCollectives, ParallelGroup
from trunnion.reference import ReferenceHardware
from trunnion.weights.loader import load_weights
from trunnion.weights.name_map import WeightMap
from trunnion.weights.safetensors_source import SafetensorsSource
from trunnion_models.deepseek_v2.model import DeepseekV2MoE
from trunnion_models.deepseek_v2.weights import WEIGHT_MAP as DEEPSEEK_V2
from trunnion_models.deepseek_v3.model import DeepseekV3MoE
from trunnion_models.deepseek_v3.weights import WEIGHT_MAP as DEEPSEEK_V3
from trunnion_models.glm4_moe.weights import WEIGHT_MAP as GLM4_MOE
from trunnion_models.qwen2_moe.model import Qwen2MoeSparseMoeBlock
from trunnion_models.qwen2_moe.weights import WEIGHT_MAP as QWEN2_MOE
from trunnion_models.qwen3_next.model import Qwen3NextSparseMoeBlock
from trunnion_models.qwen3_next.weights import WEIGHT_MAP as QWEN3_NEXT

NUM_TOKENS = 7
SIZES: dict[str, Any] = {"hidden_size": 32, "moe_intermediate_size": 24, "num_experts_per_tok": 2}
GROUPED = {**SIZES, "n_routed_experts": 8, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5}
QWEN = {**SIZES, "num_experts": 8, "shared_expert_intermediate_size": 40, "norm_topk_prob": True}


@dataclass(frozen=True)
class Family:
    """A family's block, transformers' block, and the fields that both are made of."""

    config: type
    fields: dict[str, Any]
    theirs: Callable[[Any], nn.Module]
    block: Callable[[Any, BuildContext, str], nn.Module]
    weight_map: WeightMap


FAMILIES = {
    "deepseek_v2": Family(
        DeepseekV2Config,
        {**GROUPED, "n_shared_experts": 2, "topk_method": "group_limited_greedy"},
        DeepseekV2Moe,
        DeepseekV2MoE,
        DEEPSEEK_V2,
    ),
    "deepseek_v3": Family(
        DeepseekV3Config, {**GROUPED, "n_shared_experts": 1}, HFDeepseekV3MoE, DeepseekV3MoE, DEEPSEEK_V3
    ),
    "glm4_moe": Family(Glm4MoeConfig, {**GROUPED, "n_shared_experts": 2}, Glm4MoeMoE, DeepseekV3MoE, GLM4_MOE),
    "qwen2_moe": Family(Qwen2MoeConfig, QWEN, HFQwen2MoeBlock, Qwen2MoeSparseMoeBlock, QWEN2_MOE),
    "qwen3_next": Family(Qwen3NextConfig, QWEN, HFQwen3NextBlock, Qwen3NextSparseMoeBlock, QWEN3_NEXT),
}


class Counted(NoCollectives):
    """A rank that sums nothing, and counts what it was asked to sum."""

    def __init__(self) -> None:
        self.num_sums = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        self.num_sums += 1
        return x


def published(family: Family, folder: Path) -> tuple[Any, nn.Module]:
    """A configuration, and a block with random weights that is saved in `folder` as layer 0's."""
    torch.manual_seed(0)
    config = family.config(**family.fields)
    config._experts_implementation = "eager"
    block = family.theirs(config).eval()
    for tensor in (*block.parameters(), *block.buffers()):
        torch.nn.init.normal_(tensor, std=0.2)
    tensors = {}
    for name, tensor in block.state_dict().items():
        parts = {name: tensor}
        if name == "experts.gate_up_proj":
            parts = _per_expert("gate_proj", tensor.chunk(2, dim=1)[0]) | _per_expert(
                "up_proj", tensor.chunk(2, dim=1)[1]
            )
        elif name == "experts.down_proj":
            parts = _per_expert("down_proj", tensor)
        tensors |= {f"model.layers.0.mlp.{part}": value.contiguous() for part, value in parts.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": 1}))
    return config, block


def _per_expert(name: str, stack: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"experts.{expert}.{name}.weight": tensor for expert, tensor in enumerate(stack)}


def rank_of(family: Family, config: Any, folder: Path, parallel: ParallelGroup) -> nn.Module:
    """The loaded block of one rank."""
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, parallel=parallel)
    block = family.block(config, ctx, "model.layers.0.mlp")
    layer = nn.ModuleDict({"mlp": block})
    model = nn.ModuleDict({"model": nn.ModuleDict({"layers": nn.ModuleList([layer])})})
    load_weights(model, SafetensorsSource(folder), family.weight_map, dtype=torch.float32, device=torch.device("cpu"))
    return block


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("name", FAMILIES)
@torch.inference_mode()
def test_ranks_sum_routed_and_shared_experts_at_once(name: str, size: int, tmp_path: Path) -> None:
    family = FAMILIES[name]
    config, theirs = published(family, tmp_path)
    x = torch.randn(NUM_TOKENS, config.hidden_size)
    total = torch.zeros_like(x)
    for rank in range(size):
        counted = Counted()
        parallel = ParallelGroup(rank=rank, size=size, collectives=counted)
        total += rank_of(family, config, tmp_path, parallel)(x)
        assert counted.num_sums == 1
    torch.testing.assert_close(total, theirs(x.unsqueeze(0)).reshape(x.shape), rtol=1e-4, atol=1e-4)
