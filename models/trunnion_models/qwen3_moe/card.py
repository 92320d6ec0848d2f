"""Tiny Qwen3-MoE configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "moe_intermediate_size": 24,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
    "max_position_embeddings": 64,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    "tie_word_embeddings": False,
}


def _qwen3_moe(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"qwen3_moe-{name}",
        architecture="Qwen3MoeForCausalLM",
        config=_BASE | changes,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _qwen3_moe("quick", "norms on q and k, sparse experts with weights that sum to 1", quick=True, head_dim=64),
    _qwen3_moe(
        "mixed-mlp",
        "every second layer sparse but for a dense one, weights not normalised, experts without tokens, biases, tied",
        num_hidden_layers=4,
        mlp_only_layers=[1],
        decoder_sparse_step=2,
        num_experts=24,
        num_experts_per_tok=2,
        norm_topk_prob=False,
        attention_bias=True,
        tie_word_embeddings=True,
    ),
    _qwen3_moe(
        "window",
        "a window on every layer, whatever max_window_layers says",
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=1,
        num_key_value_heads=1,
    ),
)
