"""Where the tensors of a GLM-4 checkpoint go: gate and up are one there as well, q, k and v are not."""

from __future__ import annotations

from trunnion.weights.name_map import WeightMap

WEIGHT_MAP = WeightMap(
    fuse={"qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"}},
    cut={"gate_up_proj": ("gate", "up")},
)
