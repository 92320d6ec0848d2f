"""Tiny Qwen3-Next configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    # Large, because the norm after a delta net divides by an output that random queries and keys leave near zero:
    # with 1e-6 it would blow rounding up a thousandfold, in the reference too.
    "rms_norm_eps": 1e-3,
    "max_position_embeddings": 64,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}


def _qwen3_next(name: str, notes: str, *, quick: bool = False, draft: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"qwen3_next-{name}",
        architecture="Qwen3NextForCausalLM",
        config=_BASE | changes,
        quick=quick,
        draft=draft,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _qwen3_next("quick", "three delta nets to one gated attention, partial rope, a gated shared expert", quick=True),
    _qwen3_next(
        "linear-only", "no attention layer: a model with states and no blocks", layer_types=["linear_attention"] * 4
    ),
    _qwen3_next(
        "mixed-mlp",
        "dense and sparse layers, weights not normalised, many experts without tokens, a wider rope, tied",
        mlp_only_layers=[1],
        num_experts=24,
        num_experts_per_tok=2,
        norm_topk_prob=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        tie_word_embeddings=True,
    ),
    _qwen3_next(
        "kernel-2", "a short convolution, as many k-heads as v-heads", linear_conv_kernel_dim=2, linear_num_key_heads=4
    ),
    _qwen3_next("draft", "the head for multi-token prediction, on the decoder's hidden states", quick=True, draft=True),
    _qwen3_next(
        "draft-tied",
        "a head whose target ties its own: what is shared is one tensor; a dense layer in the head, a wider rope",
        draft=True,
        mlp_only_layers=[0],
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        tie_word_embeddings=True,
    ),
)
