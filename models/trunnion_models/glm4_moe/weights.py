"""Where the tensors of a GLM-4-MoE checkpoint go: some to the decoder, some to the head that drafts for it."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE, ExpertRule, WeightMap
from trunnion_models.deepseek_v3.weights import DRAFT_IGNORE, DRAFT_RENAME

WEIGHT_MAP = WeightMap(
    experts=(ExpertRule(block="mlp.experts"),),
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
    ignore=(*COMMON_IGNORE, (r"^model\.layers\.<num_hidden_layers>", "of the draft head")),
)

DRAFT_WEIGHT_MAP = dataclasses.replace(WEIGHT_MAP, ignore=DRAFT_IGNORE, rename=DRAFT_RENAME)
