"""Tiny gpt-oss configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
}
_BASE: dict[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 64,
    "sliding_window": 6,
    "layer_types": ["sliding_attention", "full_attention"],
    # Random values reach it, as those of published models reach theirs.
    "swiglu_limit": 1.0,
    "rope_theta": 150000,
    "rope_scaling": _YARN,
}


_MXFP4: dict[str, Any] = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def _gpt_oss(
    name: str, notes: str, *, quick: bool = False, quantization: dict[str, Any] | None = None, **changes: Any
) -> Card:
    return Card(
        name=f"gpt_oss-{name}",
        architecture="GptOssForCausalLM",
        config=_BASE | changes,
        quantization=quantization,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _gpt_oss("quick", "sinks, a window in one layer of two, biases everywhere, a clamped activation", quick=True),
    _gpt_oss(
        "square",
        "stacks of experts that no shape says the way of, heads that fused operators take, layer types by default",
        intermediate_size=64,
        head_dim=64,
        layer_types=None,
    ),
    _gpt_oss(
        "all-see-all",
        "no window, one KV head, no biases of attention, tied, a rope that is not stretched, in the newer spelling",
        layer_types=["full_attention"] * 2,
        num_key_value_heads=1,
        attention_bias=False,
        tie_word_embeddings=True,
        rope_scaling=None,
        rope_theta=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    ),
    _gpt_oss(
        "many-experts",
        "experts without tokens, a window longer than some sequences, another limit and slope",
        num_local_experts=32,
        num_experts_per_tok=2,
        sliding_window=12,
        swiglu_limit=0.4,
        swiglu_alpha=1.1,
        rope_scaling=_YARN | {"truncate": True},
    ),
    _gpt_oss(
        "mxfp4",
        "experts as published: blocks of 4 bits, square, gate and up in turns",
        intermediate_size=64,
        quantization=_MXFP4,
    ),
)
