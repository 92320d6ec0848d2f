"""Where the tensors of a Qwen2-MoE checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import ExpertRule, WeightMap

WEIGHT_MAP = WeightMap(
    experts=(ExpertRule(block="mlp.experts"),),
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
)
