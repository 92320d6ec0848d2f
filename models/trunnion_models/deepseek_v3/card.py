"""Tiny DeepSeek-V3 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 12,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}

_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}

_LATENTS: dict[str, Any] = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
"""As published, and what vendors' kernels take."""


def _deepseek(name: str, notes: str, *, quick: bool = False, draft: bool = False, **changes: Any) -> Card:
    return Card(
        name=f"deepseek_v3-{name}",
        architecture="DeepseekV3ForCausalLM",
        config=_BASE | changes,
        quick=quick,
        draft=draft,
        notes=notes,
    )


CARDS: tuple[Card, ...] = (
    _deepseek(
        "quick",
        "sigmoids with a bias for the choice, groups by their two best, weights that sum to a factor, YaRN in the "
        "softmax scale, low-rank queries, dense first layer",
        quick=True,
        rope_parameters=_YARN,
        **_LATENTS,
    ),
    _deepseek(
        "one-group",
        "no groups, weights that sum to nothing, two shared experts, full queries, pairs half a head apart, biases",
        q_lora_rank=None,
        n_group=1,
        topk_group=1,
        norm_topk_prob=False,
        routed_scaling_factor=0.7,
        n_shared_experts=2,
        rope_interleave=False,
        attention_bias=True,
    ),
    Card(
        name="deepseek_v3-fp8-blocks",
        architecture="DeepseekV3ForCausalLM",
        config=_BASE
        | _LATENTS
        | {
            "hidden_size": 160,
            "intermediate_size": 256,
            "qk_nope_head_dim": 24,
            "v_head_dim": 64,
            "moe_intermediate_size": 256,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
        },
        notes="FP8 in blocks of 128 as published: 576 rows of latents and rope, of which the last block has half",
        quantization={
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
    ),
    _deepseek(
        "draft",
        "the layer after the decoder's last one, on the decoder's hidden states",
        quick=True,
        draft=True,
        rope_parameters=_YARN,
        **_LATENTS,
    ),
)
