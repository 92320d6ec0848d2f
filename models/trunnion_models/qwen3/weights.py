"""Where the tensors of a Qwen3 checkpoint go."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE, WeightMap

WEIGHT_MAP = WeightMap(
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
)

POOLING_WEIGHT_MAP = dataclasses.replace(
    WEIGHT_MAP, ignore=(*COMMON_IGNORE, (r"^lm_head", "a pooling model makes no logits")), tied={}
)
"""The embedding models: saved from AutoModel without `model.` prefix and head, or with both."""
