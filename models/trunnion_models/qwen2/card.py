"""Tiny Qwen2 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "qwen2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def _qwen2(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(name=f"qwen2-{name}", architecture="Qwen2ForCausalLM", config=_BASE | changes, quick=quick, notes=notes)


CARDS: tuple[Card, ...] = (
    _qwen2(
        "quick",
        "full attention below, windows above: two groups",
        quick=True,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=1,
    ),
    _qwen2(
        "window-off",
        "a window is given and switched off",
        use_sliding_window=False,
        sliding_window=5,
        max_window_layers=1,
    ),
    _qwen2("tied", "tied head, one KV head", tie_word_embeddings=True, num_key_value_heads=1),
    _qwen2(
        "yarn",
        "as Qwen2.5 for long contexts, in the older spelling",
        rope_theta=10000.0,
        rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    ),
)
