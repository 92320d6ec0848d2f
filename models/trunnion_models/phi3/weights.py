"""Where the tensors of a Phi-3 checkpoint go: fused as they are, each rank takes its share of each part."""

from __future__ import annotations

from trunnion.weights.name_map import WeightMap

WEIGHT_MAP = WeightMap(cut={"qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up")})
