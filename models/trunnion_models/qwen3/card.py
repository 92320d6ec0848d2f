"""Tiny Qwen3 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion.config import PoolingConfig
from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": False,
}


def _qwen3(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(name=f"qwen3-{name}", architecture="Qwen3ForCausalLM", config=_BASE | changes, quick=quick, notes=notes)


def _embedding(name: str, architecture: str, notes: str, *, normalize: bool, quick: bool = False) -> Card:
    return Card(
        name=f"qwen3-{name}",
        architecture=architecture,
        config=_BASE | {"tie_word_embeddings": True},
        pooling=PoolingConfig(normalize=normalize),
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _qwen3("quick", "norms on q and k, head_dim other than hidden / heads, tied", quick=True, tie_word_embeddings=True),
    _qwen3("biases", "biases on all four projections", attention_bias=True),
    _qwen3(
        "windows",
        "alternating windows given by layer type",
        num_hidden_layers=3,
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    _embedding(
        "embedding",
        "Qwen3ForCausalLM",
        "as published: named after the causal model, saved without prefix and head",
        normalize=True,
        quick=True,
    ),
    _embedding("embedding-raw", "Qwen3Model", "rows of any length", normalize=False),
)
