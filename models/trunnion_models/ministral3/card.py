"""Tiny Ministral 3 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
_BASE: dict[str, Any] = {
    "model_type": "ministral3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 64,
    "rope_parameters": _ROPE,
}


def _ministral3(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"ministral3-{name}",
        architecture="Ministral3ForCausalLM",
        config=_BASE | changes,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _ministral3(
        "quick", "queries that grow with each original length, in a shape that vendors' kernels take", quick=True
    ),
    _ministral3(
        "window", "a window over all layers, odd heads, tied", head_dim=24, sliding_window=7, tie_word_embeddings=True
    ),
)
