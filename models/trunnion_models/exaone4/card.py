"""Tiny EXAONE 4 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "exaone4",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "sliding_window_pattern": 2,
    "rope_theta": 1000000,
}
_LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def _exaone4(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"exaone4-{name}", architecture="Exaone4ForCausalLM", config=_BASE | changes, quick=quick, notes=notes
    )


CARDS: tuple[Card, ...] = (
    _exaone4("quick", "a layer with a window and a rope, and one with neither", quick=True),
    _exaone4(
        "as-published",
        "the 32B's pattern beside layer types, a scaled rope",
        num_hidden_layers=4,
        sliding_window_pattern="LLLG",
        layer_types=["sliding_attention"] * 3 + ["full_attention"],
        rope_scaling=_LLAMA3,
    ),
    _exaone4(
        "no-window",
        "the 1.2B's kind: every layer rotates, tied, a shape that vendors' kernels take; the newer spelling of rope",
        head_dim=64,
        sliding_window=None,
        sliding_window_pattern=None,
        layer_types=["full_attention"] * 2,
        tie_word_embeddings=True,
        rope_theta=None,
        rope_parameters=_LLAMA3 | {"rope_theta": 10000.0},
    ),
)
