"""Where the tensors of a DeepSeek-V2 checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import ExpertRule, WeightMap

WEIGHT_MAP = WeightMap(
    experts=(ExpertRule(block="mlp.experts"),),
    fuse={"gate_up_proj": {"gate": "gate_proj", "up": "up_proj"}},
)
