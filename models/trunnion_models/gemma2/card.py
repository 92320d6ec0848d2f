"""Tiny Gemma 2 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "gemma2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "query_pre_attn_scalar": 20,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "attn_logit_softcapping": 1.5,
    "final_logit_softcapping": 3.0,
}


def _gemma2(name: str, notes: str, *, host: dict[str, Any] | None = None, **changes: Any) -> Card:
    """`host` are the fields of Card that say what the host does; `changes` go to the configuration."""
    config = _BASE | changes
    return Card(name=f"gemma2-{name}", architecture="Gemma2ForCausalLM", config=config, notes=notes, **(host or {}))


CARDS: tuple[Card, ...] = (
    _gemma2(
        "quick",
        "a layer with a window and one without, caps that bend scores and logits, scaled tied embeddings",
        host={"quick": True},
    ),
    _gemma2(
        "no-caps",
        "both caps null, layer types of its own, biases, an own head",
        num_hidden_layers=3,
        layer_types=["full_attention", "full_attention", "sliding_attention"],
        attn_logit_softcapping=None,
        final_logit_softcapping=None,
        attention_bias=True,
        tie_word_embeddings=False,
    ),
    Card(
        name="gemma2-default-caps",
        architecture="Gemma2ForCausalLM",
        config={key: value for key, value in _BASE.items() if not key.endswith("softcapping")},
        seq_lens=(61, 2, 40),
        block_size=3,
        notes="the caps of the family where none is given, windows that leave blocks behind",
    ),
    _gemma2(
        "wide",
        "caps with and without a window in a shape that vendors' kernels take, one KV head",
        host={"seq_lens": (61, 9, 40)},
        head_dim=64,
        num_key_value_heads=1,
        sliding_window=11,
    ),
)
