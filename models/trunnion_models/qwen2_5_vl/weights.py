"""Where the tensors of a Qwen2.5-VL checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import WeightMap
from trunnion_models.qwen2.weights import WEIGHT_MAP as TEXT

WEIGHT_MAP = WeightMap(
    # Checkpoints of transformers 4.52 and later keep the tower inside the model.
    rename=((r"^model\.visual", "visual"),),
    fuse=TEXT.fuse,
)
