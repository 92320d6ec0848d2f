"""Tiny Ministral configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "ministral",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 64,
    "rope_theta": 100000000.0,
    "sliding_window": 6,
}


def _ministral(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"ministral-{name}",
        architecture="MinistralForCausalLM",
        config=_BASE | changes,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _ministral("quick", "windows by layer type", quick=True, layer_types=["full_attention", "sliding_attention"]),
    _ministral(
        "no-types",
        "the window of all layers by default, tied, the newer spelling of rope",
        tie_word_embeddings=True,
        rope_theta=None,
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    ),
)
