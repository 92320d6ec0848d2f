"""Tiny Qwen2-MoE configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 48,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def _qwen2_moe(name: str, notes: str, *, quick: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"qwen2_moe-{name}",
        architecture="Qwen2MoeForCausalLM",
        config=_BASE | changes,
        quick=quick,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _qwen2_moe(
        "quick", "biases on q, k and v, a shared expert behind a gate, weights not normalised", quick=True, head_dim=64
    ),
    _qwen2_moe(
        "windows",
        "windows on every second layer below a bound; dense and sparse layers; weights that sum to 1; tied",
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=6,
        max_window_layers=3,
        mlp_only_layers=[1],
        norm_topk_prob=True,
        tie_word_embeddings=True,
    ),
)
