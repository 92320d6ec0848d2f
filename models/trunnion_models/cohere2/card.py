"""Tiny Cohere 2 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "cohere2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def _cohere2(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"cohere2-{name}", architecture="Cohere2ForCausalLM", config=_BASE | changes, quick=quick, notes=notes
    )


CARDS: tuple[Card, ...] = (
    _cohere2(
        "quick",
        "a layer with a window and a rope and one with neither, in a shape that vendors' kernels take; tied",
        quick=True,
        head_dim=64,
        sliding_window_pattern=2,
        rope_theta=50000.0,
        logit_scale=0.25,
    ),
    _cohere2(
        "pattern",
        "by default one layer of four without a window, and as many KV heads as query heads; logits as they are",
        num_hidden_layers=5,
        num_key_value_heads=None,
        sliding_window=9,
        logit_scale=1.0,
    ),
    _cohere2(
        "by-type",
        "windows by layer type; biases, an own head, the newer spelling of rope",
        layer_types=[FULL, SLIDING],
        sliding_window=7,
        attention_bias=True,
        tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
    ),
    _cohere2("full", "no layer with a window, so that no layer rotates", layer_types=[FULL, FULL]),
    _cohere2(
        "sliding",
        "all layers with a window; position interpolation, in the older spelling",
        layer_types=[SLIDING, SLIDING],
        rope_scaling={"type": "linear", "factor": 3.0},
    ),
    _cohere2(
        "long-window",
        "windows that no sequence fills",
        num_hidden_layers=4,
        sliding_window=64,
    ),
    _cohere2(
        "mqa",
        "one KV head, three query heads; an eps that weighs",
        hidden_size=48,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=20,
        sliding_window_pattern=2,
        layer_norm_eps=0.1,
    ),
)
