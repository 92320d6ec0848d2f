"""Where the tensors of a Gemma 3 checkpoint go; those of a vision tower are left out."""

from __future__ import annotations

from trunnion.weights.name_map import COMMON_IGNORE, WeightMap

NO_IMAGES = "only text is run: this port takes no images"

WEIGHT_MAP = WeightMap(
    fuse={
        "qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"},
        "gate_up_proj": {"gate": "gate_proj", "up": "up_proj"},
    },
    ignore=(*COMMON_IGNORE, (r"^(?:model\.)?(?:vision_tower|multi_modal_projector)", NO_IMAGES)),
)
