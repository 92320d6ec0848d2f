"""Tiny SmolLM3 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "smollm3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def _smollm3(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"smollm3-{name}", architecture="SmolLM3ForCausalLM", config=_BASE | changes, quick=quick, notes=notes
    )


CARDS: tuple[Card, ...] = (
    _smollm3(
        "quick",
        "a layer with a rope and one without, in a shape that vendors' kernels take; tied by default",
        quick=True,
        head_dim=64,
        no_rope_layer_interval=2,
        rope_theta=5000000.0,
    ),
    _smollm3(
        "windows",
        "by default in the layers without a rope",
        num_hidden_layers=4,
        no_rope_layers=[1, 0, 0, 1],
        use_sliding_window=True,
        sliding_window=6,
    ),
    _smollm3(
        "by-type",
        "windows by layer type, in a layer with a rope; all biases, an own head, the newer spelling of rope",
        no_rope_layers=[1, 0],
        use_sliding_window=True,
        sliding_window=7,
        layer_types=["sliding_attention", "full_attention"],
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    ),
)
