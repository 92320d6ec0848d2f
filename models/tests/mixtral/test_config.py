"""Mixtral: what its configuration leaves out, what a published one resolves to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.mixtral.config import MixtralConfig

BASE: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 16,
}

WIZARDLM_2_8X22B: dict[str, Any] = {
    "_name_or_path": "",
    "architectures": ["MixtralForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "initializer_range": 0.02,
    "intermediate_size": 16384,
    "max_position_embeddings": 65536,
    "model_type": "mixtral",
    "num_attention_heads": 48,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 56,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.36.2",
    "use_cache": False,
    "vocab_size": 32000,
}


def test_defaults_are_those_of_the_family() -> None:
    config = MixtralConfig.from_hf(BASE)
    assert (config.head_dim, config.num_key_value_heads) == (4, 8)
    assert (config.num_local_experts, config.num_experts_per_tok) == (8, 2)
    assert config.rope.rope_theta == 1000000.0 and config.max_position_embeddings == 131072
    assert config.rms_norm_eps == 1e-5
    assert config.sliding_window is None and not config.tie_word_embeddings


def test_a_published_configuration_means_what_transformers_makes_of_it() -> None:
    config = MixtralConfig.from_hf(WIZARDLM_2_8X22B)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (32000, 6144, 16384)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (48, 8, 128)
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 1000000)
    assert config.num_hidden_layers == 56 and config.sliding_window is None
    assert not config.tie_word_embeddings and config.max_model_len == 65536


def test_biases_that_transformers_passes_over_are_passed_over() -> None:
    config = MixtralConfig.from_hf(BASE | {"attention_bias": True, "mlp_bias": True})
    assert not config.attention_bias and not config.mlp_bias


def test_a_window_that_is_given_is_on_every_layer() -> None:
    assert MixtralConfig.from_hf(BASE | {"sliding_window": 9}).sliding_window == 9


def test_more_experts_per_token_than_experts_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok 9 is above num_local_experts 8"):
        MixtralConfig.from_hf(BASE | {"num_experts_per_tok": 9})


def test_another_activation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="hidden_act 'gelu'"):
        MixtralConfig.from_hf(BASE | {"hidden_act": "gelu"})
