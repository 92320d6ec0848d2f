"""Where the tensors of an XLM-RoBERTa checkpoint go."""

from __future__ import annotations

import dataclasses

from trunnion_models.bert.weights import EMBEDDING_WEIGHT_MAP as BERT_EMBEDDING_WEIGHT_MAP
from trunnion_models.bert.weights import WEIGHT_MAP as BERT_WEIGHT_MAP

PREFIXES = ((r"^(embeddings|encoder|pooler)", r"roberta.\1"),)
LEFT_OVER = (
    (r"^lm_head", "the head that the model was pre-trained with"),
    (r"pooler", "the pooler of a classifier of another kind"),
)

WEIGHT_MAP = dataclasses.replace(BERT_WEIGHT_MAP, prefixes=PREFIXES, ignore=(*BERT_WEIGHT_MAP.ignore, *LEFT_OVER))

EMBEDDING_WEIGHT_MAP = dataclasses.replace(
    BERT_EMBEDDING_WEIGHT_MAP, prefixes=PREFIXES, ignore=(*BERT_EMBEDDING_WEIGHT_MAP.ignore, *LEFT_OVER)
)
