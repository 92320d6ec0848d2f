"""Tiny BERT configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion.config import PoolingConfig
from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "bert",
    "vocab_size": 131,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}


def _card(name: str, architecture: str, notes: str, *, quick: bool = False, **fields: Any) -> Card:
    """`fields` are those of Card, and `changes` what differs in the configuration."""
    config = _BASE | fields.pop("changes", {})
    return Card(
        name=f"bert-{name}",
        architecture=architecture,
        config=config,
        notes=notes,
        quick=quick,
        whole_prompts=True,
        **fields,
    )


CARDS: tuple[Card, ...] = (
    _card(
        "quick",
        "BertForSequenceClassification",
        "a classifier of three labels, its pooler on the first token; heads of a size that vendors' kernels take",
        quick=True,
        changes={"id2label": {"0": "a", "1": "b", "2": "c"}},
    ),
    _card(
        "pairs",
        "BertForSequenceClassification",
        "a cross-encoder: the tokens of the second text are of another type, one sequence is a single text; "
        "scores enough for an error in bfloat16 to be no luck",
        quick=True,
        changes={"id2label": {str(index): f"score {index}" for index in range(8)}},
        second_texts=(9, 64, 5),
    ),
    _card(
        "embedding",
        "BertModel",
        "the mean of all tokens, of length 1",
        quick=True,
        pooling=PoolingConfig(mode="mean", normalize=True),
    ),
    _card(
        "cls",
        "BertModel",
        "the first token as it is; heads of an odd size",
        pooling=PoolingConfig(mode="cls", normalize=False),
        changes={"hidden_size": 60, "num_attention_heads": 3},
    ),
)
