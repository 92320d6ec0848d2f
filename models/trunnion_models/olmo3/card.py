"""Tiny OLMo 3 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "attention_factor": 1.2,
    "beta_fast": 32,
    "beta_slow": 1,
}
_BASE: dict[str, Any] = {
    "model_type": "olmo3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_theta": 500000,
    "rope_scaling": _YARN,
}


def _olmo3(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(name=f"olmo3-{name}", architecture="Olmo3ForCausalLM", config=_BASE | changes, quick=quick, notes=notes)


CARDS: tuple[Card, ...] = (
    _olmo3("quick", "windows, and a stretched rope of the other layers only, as published", quick=True),
    _olmo3(
        "four-layers",
        "layer types by default, a window longer than some sequences, tied",
        num_hidden_layers=4,
        layer_types=None,
        sliding_window=12,
        tie_word_embeddings=True,
    ),
    _olmo3(
        "ropes",
        "the newer spelling, another base for sliding layers",
        rope_theta=None,
        rope_scaling=None,
        rope_parameters={
            "full_attention": _YARN | {"rope_theta": 10000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        },
    ),
)
