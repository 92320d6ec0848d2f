"""Tiny DeepSeek-V2 configurations for the matrix."""

from __future__ import annotations

from typing import Any

from trunnion_models.card import Card

_BASE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": None,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}

_YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "mscale": 0.7,
    "mscale_all_dim": 1.0,
}


def _deepseek(name: str, notes: str, *, quick: bool = False, block_size: int = 4, **changes: Any) -> Card:
    return Card(
        name=f"deepseek_v2-{name}",
        architecture="DeepseekV2ForCausalLM",
        config=_BASE | changes,
        quick=quick,
        notes=notes,
        block_size=block_size,
    )


_W8A8: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "ignore": ["lm_head", "re:.*mlp\\.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False},
            "input_activations": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "token", "dynamic": True,
            },
        }
    },
}  # fmt: skip


def _quantised(name: str, notes: str, quantization: dict[str, Any], *, quick: bool = False) -> Card:
    """Weights of several blocks; two ranks cut between blocks."""
    changes = {
        "hidden_size": 160,
        "intermediate_size": 256,
        "kv_lora_rank": 144,
        "qk_nope_head_dim": 24,
        "v_head_dim": 64,
        "moe_intermediate_size": 256,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "num_hidden_layers": 2,
    }
    return Card(
        name=f"deepseek_v2-{name}",
        architecture="DeepseekV2ForCausalLM",
        config=_BASE | changes,
        quick=quick,
        notes=notes,
        quantization=quantization,
    )


CARDS: tuple[Card, ...] = (
    _deepseek(
        "quick",
        "low-rank queries, routing within groups, YaRN in amplitude and softmax scale, dense first layer; latents of "
        "the size that vendors' kernels take",
        quick=True,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        q_lora_rank=24,
        topk_method="group_limited_greedy",
        n_group=4,
        topk_group=2,
        routed_scaling_factor=1.7,
        rope_parameters=_YARN,
    ),
    _deepseek("lite", "one full query projection, greedy routing over all experts, plain rope", block_size=16),
    _deepseek(
        "many-experts", "most experts see no token", n_routed_experts=32, num_experts_per_tok=2, n_shared_experts=1
    ),
    _deepseek("biases", "biases on the low-rank projections and the output", attention_bias=True, q_lora_rank=24),
    _quantised(
        "fp8-blocks",
        "FP8 in blocks of 128, rows cut short; scales of experts, and of an absorbed projection",
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
        quick=True,
    ),
    _quantised(
        "w8a8",
        "compressed-tensors: experts in int8, routers left out by pattern",
        _W8A8,
    ),
    _quantised(
        "gptq",
        "weights alone of 4 bits: experts, and an absorbed projection whose last group is cut short",
        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False},
    ),
    _deepseek("dense", "no experts at all, tied", first_k_dense_replace=3, tie_word_embeddings=True),
)
