"""Where the tensors of a Cohere 2 checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import WeightMap

WEIGHT_MAP = WeightMap(
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
)
