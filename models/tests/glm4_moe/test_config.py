"""GLM-4-MoE: what its configuration leaves out, what GLM-4.5's resolves to, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.weights.name_map import Ignored
from trunnion_models.glm4_moe.config import Glm4MoeConfig
from trunnion_models.glm4_moe.weights import WEIGHT_MAP

BASE: dict[str, Any] = {
    "model_type": "glm4_moe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}

GLM_4_5: dict[str, Any] = {
    "architectures": ["Glm4MoeForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "pad_token_id": 151329,
    "eos_token_id": [151329, 151336, 151338],
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "partial_rotary_factor": 0.5,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 131072,
    "model_type": "glm4_moe",
    "moe_intermediate_size": 1536,
    "norm_topk_prob": True,
    "num_attention_heads": 96,
    "n_group": 1,
    "topk_group": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.5,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "num_hidden_layers": 92,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "num_nextn_predict_layers": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.54.0",
    "use_cache": True,
    "use_qk_norm": True,
    "vocab_size": 151552,
}


def test_defaults_are_those_of_the_family() -> None:
    config = Glm4MoeConfig.from_hf(BASE)
    assert (config.head_dim, config.num_key_value_heads) == (8, 8)
    assert (config.n_routed_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (128, 8, 1408)
    assert (config.n_group, config.topk_group, config.n_shared_experts, config.first_k_dense_replace) == (1, 1, 1, 1)
    assert config.routed_scaling_factor == 1.0 and config.norm_topk_prob and config.rms_norm_eps == 1e-5
    assert not config.use_qk_norm and not config.attention_bias and not config.tie_word_embeddings
    assert config.rope.rope_theta == 10000.0 and config.max_position_embeddings == 131072
    assert config.num_nextn_predict_layers == 1


def test_a_published_configuration_means_what_transformers_makes_of_it() -> None:
    config = Glm4MoeConfig.from_hf(GLM_4_5)
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (151552, 5120, 12288)
    assert (config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads) == (92, 96, 8)
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 1000000)
    assert (config.head_dim, config.rope.rotary_dim(config.head_dim)) == (128, 64)
    assert config.use_qk_norm and config.attention_bias and not config.tie_word_embeddings
    assert config.max_model_len == 131072


def test_the_layer_behind_the_decoders_is_the_heads() -> None:
    found = WEIGHT_MAP.for_config(Glm4MoeConfig.from_hf(GLM_4_5))
    for leaf in ("eh_proj.weight", "shared_head.head.weight", "mlp.gate.e_score_correction_bias"):
        assert found.resolve(f"model.layers.92.{leaf}") == Ignored("of the draft head")
    assert isinstance(found.resolve("model.layers.91.mlp.gate.e_score_correction_bias"), list)


@pytest.mark.parametrize(
    ("changes", "rotated"),
    [
        ({}, 64),
        ({"partial_rotary_factor": 0.25}, 32),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}}, 128),
    ],
    ids=["default", "older-spelling", "newer-spelling"],
)
def test_half_of_a_head_is_rotated_unless_the_config_says_otherwise(changes: dict[str, Any], rotated: int) -> None:
    assert Glm4MoeConfig.from_hf(BASE | changes).rope.rotary_dim(128) == rotated


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 129}, "num_experts_per_tok 129 is above"),
        ({"n_group": 3}, "128 experts cannot be routed within 1 of 3 groups"),
        ({"vocab_size": None}, "'vocab_size' is missing"),
    ],
    ids=["experts", "groups", "missing"],
)
def test_what_cannot_be_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Glm4MoeConfig.from_hf(BASE | changes)


@pytest.mark.parametrize(
    "changes",
    [{"scoring_func": "softmax"}, {"topk_method": "greedy"}, {"num_nextn_predict_layers": 2}, {"hidden_act": "gelu"}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_done_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        Glm4MoeConfig.from_hf(BASE | changes)
