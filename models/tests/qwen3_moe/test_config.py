"""Qwen3-MoE: what its configuration leaves out, what a published one resolves to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.qwen3_moe.config import Qwen3MoeConfig

BASE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
}

QWEN3_30B_A3B: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 8192,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def test_defaults_are_those_of_the_family() -> None:
    config = Qwen3MoeConfig.from_hf(BASE)
    assert (config.head_dim, config.num_key_value_heads) == (16, 4)
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (128, 8, 768)
    assert not config.norm_topk_prob and not config.tie_word_embeddings and not config.attention_bias
    assert config.rope.rope_theta == 10000.0 and config.max_position_embeddings == 32768
    assert all(config.is_sparse(index) for index in range(6))
    assert config.windows == (None,) * 6


def test_a_published_configuration_means_what_transformers_makes_of_it() -> None:
    config = Qwen3MoeConfig.from_hf(QWEN3_30B_A3B)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (151936, 2048, 8192)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (32, 4, 128)
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 1000000.0)
    assert config.num_hidden_layers == 48 and config.windows == (None,) * 48
    assert config.norm_topk_prob and not config.tie_word_embeddings and config.max_model_len == 40960


def test_transformers_5_spells_the_number_of_experts_differently() -> None:
    assert Qwen3MoeConfig.from_hf(BASE | {"num_local_experts": 12}).num_experts == 12


def test_sparse_layers_skip_the_dense_ones() -> None:
    config = Qwen3MoeConfig.from_hf(BASE | {"mlp_only_layers": [3], "decoder_sparse_step": 2})
    assert [index for index in range(6) if config.is_sparse(index)] == [1, 5]


def test_a_window_is_on_every_layer_or_on_none() -> None:
    changes = {"sliding_window": 9, "max_window_layers": 2}
    assert Qwen3MoeConfig.from_hf(BASE | changes | {"use_sliding_window": True}).windows == (9,) * 6
    assert Qwen3MoeConfig.from_hf(BASE | changes).windows == (None,) * 6


def test_more_experts_per_token_than_experts_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok 8 is above num_experts 4"):
        Qwen3MoeConfig.from_hf(BASE | {"num_experts": 4})


def test_another_activation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="hidden_act 'gelu'"):
        Qwen3MoeConfig.from_hf(BASE | {"hidden_act": "gelu"})
