"""Where the tensors of a Qwen3.5 checkpoint go: to the decoder, to the head that drafts for it, to no vision tower."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE, Rules
from trunnion_models.qwen3_next.weights import DRAFT_WEIGHT_MAP as QWEN3_NEXT_DRAFT
from trunnion_models.qwen3_next.weights import WEIGHT_MAP as QWEN3_NEXT

NO_IMAGES: Rules = ((r"^(?:model\.)?(?:visual|vision_tower)", "only text is run: this port takes no images"),)

WEIGHT_MAP = dataclasses.replace(
    QWEN3_NEXT,
    experts=(),
    fuse={
        **QWEN3_NEXT.fuse,
        "in_proj_qkvz": {"q+k+v": "in_proj_qkv", "z": "in_proj_z"},
        "in_proj_ba": {"b": "in_proj_b", "a": "in_proj_a"},
    },
    ignore=(*COMMON_IGNORE, *NO_IMAGES, (r"^mtp", "of the draft head")),
)

DRAFT_WEIGHT_MAP = dataclasses.replace(WEIGHT_MAP, ignore=(*QWEN3_NEXT_DRAFT.ignore, *NO_IMAGES))
