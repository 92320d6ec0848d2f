"""Tiny OLMo 2 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "olmo2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 500000,
    "rms_norm_eps": 1e-6,
}


def _olmo2(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(name=f"olmo2-{name}", architecture="Olmo2ForCausalLM", config=_BASE | changes, quick=quick, notes=notes)


CARDS: tuple[Card, ...] = (
    _olmo2("quick", "norms behind the layers and over all heads of q and k, which ranks share", quick=True),
    _olmo2(
        "mha",
        "as published: as many KV heads as query heads, by default; biases, tied",
        num_key_value_heads=None,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    _olmo2(
        "mqa",
        "one KV head, a rope in the newer spelling",
        num_key_value_heads=1,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
)
