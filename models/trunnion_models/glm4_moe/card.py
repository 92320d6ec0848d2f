"""Tiny GLM-4-MoE configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "glm4_moe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.5,
    "attention_bias": True,
    "use_qk_norm": True,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}


def _glm4_moe(name: str, notes: str, *, quick: bool = False, draft: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"glm4_moe-{name}",
        architecture="Glm4MoeForCausalLM",
        config=_BASE | changes,
        quick=quick,
        draft=draft,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _glm4_moe(
        "quick",
        "half of a head rotated, norms on q and k behind biases, a bias for the choice of experts, dense first layer",
        quick=True,
        head_dim=64,
    ),
    _glm4_moe(
        "plain-heads",
        "as GLM-4.5-Air: no norms on q and k; a rope of its own, groups of experts, two shared ones, tied",
        use_qk_norm=False,
        attention_bias=False,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75},
        n_routed_experts=12,
        n_group=4,
        topk_group=2,
        n_shared_experts=2,
        norm_topk_prob=False,
        tie_word_embeddings=True,
    ),
    _glm4_moe(
        "draft",
        "the layer after the decoder's last one, on the decoder's hidden states",
        quick=True,
        draft=True,
        head_dim=64,
    ),
)
