"""Tiny Granite configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "granite",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "embedding_multiplier": 1.5,
    "residual_multiplier": 0.7,
    "attention_multiplier": 0.09,
    "logits_scaling": 3.0,
}


def _granite(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"granite-{name}", architecture="GraniteForCausalLM", config=_BASE | changes, quick=quick, notes=notes
    )


CARDS: tuple[Card, ...] = (
    _granite(
        "quick",
        "four multipliers, a scale that is not of the head size, tied",
        quick=True,
        head_dim=64,
        tie_word_embeddings=True,
    ),
    _granite(
        "small-branches",
        "the multipliers of Granite 3.3, but for the embeddings' that would drown a random model; a large rope_theta",
        embedding_multiplier=2.0,
        residual_multiplier=0.22,
        attention_multiplier=0.0625,
        logits_scaling=8.0,
        rope_theta=10000000.0,
        tie_word_embeddings=True,
    ),
    Card(
        name="granite-no-multipliers",
        architecture="GraniteForCausalLM",
        config={key: value for key, value in _BASE.items() if not key.endswith(("multiplier", "scaling"))}
        | {"attention_bias": True, "mlp_bias": True},
        notes="no multiplier is given: all are one, the scale of the softmax too; biases, an own head",
    ),
)
