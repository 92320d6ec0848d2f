"""Tiny XLM-RoBERTa configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion.config import PoolingConfig
from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "xlm-roberta",
    "vocab_size": 131,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 66,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}


def _card(name: str, architecture: str, notes: str, *, quick: bool = False, **fields: Any) -> Card:
    """`fields` are those of Card, and `changes` what differs in the configuration."""
    config = _BASE | fields.pop("changes", {})
    return Card(
        name=f"xlm_roberta-{name}",
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
        "XLMRobertaForSequenceClassification",
        "a cross-encoder: one score of a joined pair; positions from 2 on",
        quick=True,
        changes={"id2label": {"0": "score"}},
    ),
    _card(
        "embedding",
        "XLMRobertaModel",
        "the first token, of length 1",
        quick=True,
        pooling=PoolingConfig(mode="cls", normalize=True),
    ),
    _card(
        "mean",
        "XLMRobertaModel",
        "the mean of all tokens as it is, in a layout of many heads",
        pooling=PoolingConfig(mode="mean", normalize=False),
        changes={"hidden_size": 96, "num_attention_heads": 6},
    ),
)
