"""Where the tensors of a Mistral 3 checkpoint go; the vision tower's are left out."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE
from trunnion_models.ministral3.weights import WEIGHT_MAP as TEXT

NO_IMAGES = "only text is run: this port takes no images"

WEIGHT_MAP = dataclasses.replace(
    TEXT, ignore=(*COMMON_IGNORE, (r"^(?:model\.)?(?:vision_tower|multi_modal_projector)", NO_IMAGES))
)
