"""Tiny Granite-MoE configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "granitemoe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "embedding_multiplier": 3.0,
    "attention_multiplier": 0.08,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.5,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def _granitemoe(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"granitemoe-{name}",
        architecture="GraniteMoeForCausalLM",
        config=_BASE | changes,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _granitemoe("quick", "all four multipliers, stacked experts, tied", quick=True, head_dim=64),
    _granitemoe(
        "plain",
        "one multiplier of four, biases on all projections, an untied head, experts without tokens",
        embedding_multiplier=1.0,
        attention_multiplier=0.3,
        residual_multiplier=1.0,
        logits_scaling=1.0,
        attention_bias=True,
        num_local_experts=16,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    ),
)
