"""Where the tensors of a DeepSeek-V3 checkpoint go: some to the decoder, some to the head that drafts for it."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE
from trunnion_models.deepseek_v2.weights import WEIGHT_MAP as DEEPSEEK_V2

WEIGHT_MAP = dataclasses.replace(
    DEEPSEEK_V2, ignore=(*COMMON_IGNORE, (r"^model\.layers\.<num_hidden_layers>", "of the draft head"))
)
