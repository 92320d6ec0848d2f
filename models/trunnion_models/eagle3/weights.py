"""Where the tensors of an EAGLE-3 checkpoint go."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE
from trunnion_models.llama.weights import WEIGHT_MAP as LLAMA

WEIGHT_MAP = dataclasses.replace(
    LLAMA,
    ignore=(*COMMON_IGNORE, (r"^t2d", "d2t says the same the other way round")),
    # The authors' name of the layer, and that of vLLM and speculators.
    rename=(
        (r"^(midlayer|fc)", r"model.\1"),
        (r"^model\.layers\.0", "model.midlayer"),
        (r"^d2t", "draft_vocabulary.d2t"),
    ),
    tied={},
)
