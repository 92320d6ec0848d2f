"""Tiny GLM-4 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "glm4",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 64,
    # By default outside of the vocabulary.
    "pad_token_id": 0,
}


def _glm4(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(name=f"glm4-{name}", architecture="Glm4ForCausalLM", config=_BASE | changes, quick=quick, notes=notes)


CARDS: tuple[Card, ...] = (
    _glm4("quick", "neighbouring features turn in half of a head, biases on q, k and v, four norms", quick=True),
    _glm4(
        "no-bias",
        "as GLM-4-32B: no biases; another part of a head turns, in the newer spelling; tied",
        attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25},
        tie_word_embeddings=True,
    ),
    _glm4("wide", "a shape that vendors' kernels take, one KV head", head_dim=64, num_key_value_heads=1),
)
