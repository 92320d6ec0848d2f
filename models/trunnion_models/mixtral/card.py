"""Tiny Mixtral configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def _mixtral(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"mixtral-{name}", architecture="MixtralForCausalLM", config=_BASE | changes, quick=quick, notes=notes
    )


CARDS: tuple[Card, ...] = (
    _mixtral("quick", "sparse experts under their own names: w1, w3, w2", quick=True, head_dim=64),
    _mixtral(
        "window",
        "a window on every layer, as the first configurations had it; one expert per token, many without any; tied",
        sliding_window=6,
        num_local_experts=16,
        num_experts_per_tok=1,
        tie_word_embeddings=True,
    ),
)
