"""Gemma 2: what its configuration leaves out, what null means, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.gemma2.config import Gemma2Config

BASE: dict[str, Any] = {
    "model_type": "gemma2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
}
DEFAULTS = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "query_pre_attn_scalar",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "rms_norm_eps",
    "attention_bias",
    "tie_word_embeddings",
)
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    assert getattr(Gemma2Config.from_hf(BASE), name) == getattr(AutoConfig.for_model(**BASE), name)


def test_every_other_layer_has_a_window_and_the_first_one_has() -> None:
    truth = AutoConfig.for_model(**BASE)
    windows = [truth.sliding_window if kind == "sliding_attention" else None for kind in truth.layer_types]
    assert list(Gemma2Config.from_hf(BASE).windows) == windows == [4096, None, 4096, None, 4096]


def test_layer_types_are_taken_as_given() -> None:
    types = ["full_attention"] * 4 + ["sliding_attention"]
    config = Gemma2Config.from_hf(BASE | {"layer_types": types, "sliding_window": 7})
    assert config.windows == (None, None, None, None, 7)


def test_windows_without_a_size_are_named() -> None:
    with pytest.raises(ConfigError, match="sliding_window is null"):
        Gemma2Config.from_hf(BASE | {"sliding_window": None})


@pytest.mark.parametrize("name", CAPS)
def test_a_cap_that_is_null_is_none(name: str) -> None:
    config = Gemma2Config.from_hf(BASE | {name: None})
    assert getattr(config, name) is None is getattr(AutoConfig.for_model(**BASE, **{name: None}), name)
    assert [getattr(config, other) for other in CAPS if other != name] != [None]


@pytest.mark.parametrize("value", [0, -30.0, "30", True])
@pytest.mark.parametrize("name", CAPS)
def test_a_cap_that_is_no_positive_number_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"config of gemma2: {name} must be"):
        Gemma2Config.from_hf(BASE | {name: value})


def test_the_published_config_of_9b() -> None:
    published = {
        "architectures": ["Gemma2ForCausalLM"],
        "attention_bias": False,
        "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid",
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 3584,
        "intermediate_size": 14336,
        "max_position_embeddings": 8192,
        "model_type": "gemma2",
        "num_attention_heads": 16,
        "num_hidden_layers": 42,
        "num_key_value_heads": 8,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "vocab_size": 256000,
    }
    config = Gemma2Config.from_hf(published)
    assert (config.head_dim, config.num_key_value_heads, config.query_pre_attn_scalar) == (256, 8, 256)
    assert config.windows == (4096, None) * 21
    assert (config.attn_logit_softcapping, config.final_logit_softcapping) == (50.0, 30.0)
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 1e4)
    assert config.tie_word_embeddings and config.max_model_len == 8192


@pytest.mark.parametrize(
    "changes",
    [
        {"use_bidirectional_attention": True},
        {"hidden_activation": "silu"},
        {"layer_types": ["chunked_attention"] + ["full_attention"] * 4},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_would_change_the_result_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes)).replace("layer_types", "layer type 'chunked")):
        Gemma2Config.from_hf(BASE | changes)
