"""gpt-oss: what its configuration leaves out, the published one, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRotaryEmbedding

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.rope import inv_freq_and_scale
from trunnion_models.gpt_oss.config import GptOssConfig

BASE: dict[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 131,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 16,
}
DEFAULTS = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "num_local_experts",
    "num_experts_per_tok",
    "swiglu_alpha",
    "swiglu_limit",
    "rms_norm_eps",
    "attention_bias",
    "tie_word_embeddings",
)
PUBLISHED_20B: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "attention_dropout": 0.0,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    assert getattr(GptOssConfig.from_hf(BASE), name) == getattr(AutoConfig.for_model(**BASE), name)


def test_every_other_layer_has_a_window_and_the_first_one_has() -> None:
    truth = AutoConfig.for_model(**BASE)
    windows = [truth.sliding_window if kind == "sliding_attention" else None for kind in truth.layer_types]
    assert list(GptOssConfig.from_hf(BASE).windows) == windows == [128, None, 128, None, 128]


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_scaling": None},
        {"rope_theta": 1e4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {key: PUBLISHED_20B[key] for key in ("rope_scaling", "rope_theta")},
    ],
    ids=["absent", "null", "theta-alone", "newer-spelling", "published"],
)
def test_ropes_are_those_of_transformers(rope: dict[str, Any]) -> None:
    truth = GptOssRotaryEmbedding(AutoConfig.for_model(**{**BASE, **rope}))
    inv_freq, scale = inv_freq_and_scale(GptOssConfig.from_hf(BASE | rope).rope, 64)
    torch.testing.assert_close(inv_freq, truth.inv_freq)
    assert scale == pytest.approx(truth.attention_scaling)


def test_the_published_config_of_20b() -> None:
    config = GptOssConfig.from_hf(PUBLISHED_20B)
    assert (config.head_dim, config.num_key_value_heads, config.num_experts_per_tok) == (64, 8, 4)
    assert config.windows == (128, None) * 12
    assert (config.swiglu_alpha, config.swiglu_limit) == (1.702, 7.0)
    assert (config.rope.rope_type, config.rope.rope_theta, config.rope.truncate) == ("yarn", 150000, False)
    assert config.max_model_len == 131072 and config.attention_bias and not config.tie_word_embeddings
    truth = AutoConfig.for_model(**PUBLISHED_20B)
    for spec in dataclasses.fields(config):
        if spec.name not in ("rope", "windows"):
            assert getattr(config, spec.name) == getattr(truth, spec.name), spec.name


def test_more_experts_per_token_than_experts_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok 4 is above num_local_experts 3"):
        GptOssConfig.from_hf(BASE | {"num_local_experts": 3})


@pytest.mark.parametrize("value", [0, -7.0, "7"])
def test_a_limit_that_is_no_positive_number_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="config of gpt_oss: swiglu_limit must be"):
        GptOssConfig.from_hf(BASE | {"swiglu_limit": value})


def test_windows_without_a_size_are_named() -> None:
    with pytest.raises(ConfigError, match="sliding_window is null"):
        GptOssConfig.from_hf(BASE | {"sliding_window": None})


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"layer_types": ["chunked_attention"] + ["full_attention"] * 4}, "layer type 'chunked_attention'"),
    ],
    ids=["activation", "layer-type"],
)
def test_what_would_change_the_result_is_refused(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UnsupportedError, match=text):
        GptOssConfig.from_hf(BASE | changes)
