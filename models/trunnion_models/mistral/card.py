"""Tiny Mistral configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


def _mistral(name: str, notes: str, *, host: dict[str, Any] | None = None, **changes: Any) -> Card:
    """`host` are the fields of Card that say what the host does; `changes` go to the configuration."""
    return Card(
        name=f"mistral-{name}", architecture="MistralForCausalLM", config=_BASE | changes, notes=notes, **(host or {})
    )


CARDS: tuple[Card, ...] = (
    _mistral(
        "quick",
        "a window shorter than every sequence and no multiple of a block",
        host={"quick": True},
        sliding_window=5,
    ),
    _mistral(
        "window-wide",
        "a window that leaves large blocks behind, in a shape that vendors' kernels take",
        host={"seq_lens": (61, 9, 40)},
        head_dim=64,
        sliding_window=11,
    ),
    _mistral("window-40", "a window longer than every sequence", sliding_window=40),
    _mistral(
        "no-window",
        "the window is null, the rope in the newer spelling",
        sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
    ),
)
