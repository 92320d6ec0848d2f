"""Where the tensors of a DeepSeek-V3 checkpoint go: some to the decoder, some to the head that drafts for it."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE, Rules
from trunnion_models.deepseek_v2.weights import WEIGHT_MAP as DEEPSEEK_V2

WEIGHT_MAP = dataclasses.replace(
    DEEPSEEK_V2, ignore=(*COMMON_IGNORE, (r"^model\.layers\.<num_hidden_layers>", "of the draft head"))
)

HEAD = r"^model\.layers\.<num_hidden_layers>"
DRAFT_IGNORE: Rules = (
    *COMMON_IGNORE,
    (r"^model\.layers\.(?!<num_hidden_layers>\.)\d+", "of the decoder that is drafted for"),
    (r"^model\.norm", "of the decoder that is drafted for"),
    (rf"{HEAD}\.(?:embed_tokens|shared_head\.head)", "a copy of the decoder's"),
)
DRAFT_RENAME: Rules = (
    (rf"{HEAD}\.(enorm|hnorm|eh_proj)", r"mtp.\1"),
    (rf"{HEAD}\.shared_head\.norm", "mtp.norm"),
    (HEAD, "mtp.layers.0"),
)
"""Of heads whose tensors are those of the layer after the decoder's last one; other families have them too."""

DRAFT_WEIGHT_MAP = dataclasses.replace(WEIGHT_MAP, ignore=DRAFT_IGNORE, rename=DRAFT_RENAME)
