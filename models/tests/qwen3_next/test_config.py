"""Qwen3-Next: its fields against transformers, which layers are linear, which are sparse, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from transformers import AutoConfig

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.qwen3_next.config import Qwen3NextConfig

BASE: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(("changes", "full"), [({}, [3]), ({"full_attention_interval": 2}, [1, 3, 5])], ids=str)
def test_every_nth_layer_is_full_attention(changes: dict[str, Any], full: list[int]) -> None:
    types = Qwen3NextConfig.from_hf(BASE | changes).layer_types
    assert [index for index, kind in enumerate(types) if kind == "full_attention"] == full


def test_sparse_layers_skip_the_dense_ones() -> None:
    config = Qwen3NextConfig.from_hf(BASE | {"mlp_only_layers": [3], "decoder_sparse_step": 2})
    assert [index for index in range(6) if config.is_sparse(index)] == [1, 5]


def test_a_quarter_of_a_head_is_rotated_unless_the_config_says_otherwise() -> None:
    assert Qwen3NextConfig.from_hf(BASE).rope.rotary_dim(256) == 64
    assert Qwen3NextConfig.from_hf(BASE | {"partial_rotary_factor": 0.5}).rope.rotary_dim(256) == 128


PUBLISHED_80B: dict[str, Any] = {
    "architectures": ["Qwen3NextForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "full_attention_interval": 4,
    "head_dim": 256,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_value_head_dim": 128,
    "max_position_embeddings": 262144,
    "mlp_only_layers": [],
    "model_type": "qwen3_next",
    "moe_intermediate_size": 512,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "num_hidden_layers": 48,
    "num_key_value_heads": 2,
    "partial_rotary_factor": 0.25,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 10000000,
    "shared_expert_intermediate_size": 512,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""What Qwen3-Next-80B-A3B-Instruct publishes."""


@pytest.mark.parametrize("config", [BASE, PUBLISHED_80B], ids=["few", "published-80b"])
def test_fields_are_those_of_transformers(config: dict[str, Any]) -> None:
    settings = copy.deepcopy(config)
    expected = AutoConfig.for_model(settings.pop("model_type"), **settings)
    got = Qwen3NextConfig.from_hf(config)
    read = {field.name for field in dataclasses.fields(got)} - {"rope", "layer_types", "mlp_only_layers"}
    for name in read - {"num_nextn_predict_layers"}:
        assert getattr(got, name) == getattr(expected, name), name
    assert list(got.layer_types) == expected.layer_types
    assert list(got.mlp_only_layers) == expected.mlp_only_layers
    for name, value in expected.rope_parameters.items():
        assert getattr(got.rope, name) == value, name


@pytest.mark.parametrize(("given", "heads"), [({}, 1), ({"num_nextn_predict_layers": 0}, 0)], ids=["unsaid", "none"])
def test_the_number_of_heads_that_draft(given: dict[str, int], heads: int) -> None:
    assert Qwen3NextConfig.from_hf(BASE | given).num_nextn_predict_layers == heads


@pytest.mark.parametrize("settings", [{"hidden_act": "gelu"}, {"layer_types": ["mamba"] * 6}], ids=str)
def test_what_is_not_done_here_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="not supported; choices"):
        Qwen3NextConfig.from_hf(BASE | settings)


def test_more_experts_per_token_than_experts_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok 10 is above num_experts 8"):
        Qwen3NextConfig.from_hf(BASE | {"num_experts": 8})
