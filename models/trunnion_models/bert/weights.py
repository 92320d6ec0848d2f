"""Where the tensors of a BERT checkpoint go."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import COMMON_IGNORE, WeightMap

WEIGHT_MAP = WeightMap(
    ignore=(
        *COMMON_IGNORE,
        (r"embeddings\.position_ids", "the numbers 0, 1, 2 ..."),
        (r"^cls", "the heads that the model was pre-trained with"),
    ),
    prefixes=((r"^(embeddings|encoder|pooler)", r"bert.\1"),),
    # Checkpoints converted from TensorFlow.
    rename=((r"LayerNorm\.gamma", "LayerNorm.weight"), (r"LayerNorm\.beta", "LayerNorm.bias")),
    fuse={
        "attention.qkv_proj": {
            "q": "attention.self.query",
            "k": "attention.self.key",
            "v": "attention.self.value",
        },
    },
    tied={},
)

EMBEDDING_WEIGHT_MAP = dataclasses.replace(
    WEIGHT_MAP,
    ignore=(
        *WEIGHT_MAP.ignore,
        (r"pooler", "the head of a classifier, and this model pools its hidden states"),
        (r"^classifier", "the head of a classifier, and this model pools its hidden states"),
    ),
)
