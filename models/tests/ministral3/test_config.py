"""Ministral 3: YaRN and growing queries, unless the config has a rope of its own."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.ministral3.config import Ministral3Config

BASE: dict[str, Any] = {
    "model_type": "ministral3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}
ROPE: dict[str, Any] = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 16.0,
    "llama_4_scaling_beta": 0.1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 16384,
    "rope_theta": 1000000.0,
    "rope_type": "yarn",
    "type": "yarn",
}
"""As published with all sizes."""


def test_defaults_are_those_of_the_family() -> None:
    config = Ministral3Config.from_hf(BASE)
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (8, 128, 1e-5)
    assert (config.max_model_len, config.windows) == (262144, (None, None))
    assert config == Ministral3Config.from_hf(BASE | {"rope_parameters": ROPE})
    assert not config.tie_word_embeddings


def test_null_head_dim_is_the_share_of_a_head() -> None:
    assert Ministral3Config.from_hf(BASE | {"head_dim": None}).head_dim == 8


def test_a_window_is_that_of_all_layers() -> None:
    assert Ministral3Config.from_hf(BASE | {"sliding_window": 7}).windows == (7, 7)
    with pytest.raises(UnsupportedError, match="layer type 'full_attention' is not supported"):
        Ministral3Config.from_hf(BASE | {"sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"]})


def test_the_older_spelling_of_rope() -> None:
    scaling = {key: value for key, value in ROPE.items() if key not in ("rope_type", "rope_theta")}
    config = Ministral3Config.from_hf(BASE | {"rope_scaling": scaling, "rope_theta": 5000.0})
    assert (config.rope.rope_type, config.rope.rope_theta, config.query_scaling) == ("yarn", 5000.0, 0.1)


def test_a_rope_that_says_nothing_of_queries_is_named() -> None:
    with pytest.raises(ConfigError, match="rope_parameters must have llama_4_scaling_beta"):
        Ministral3Config.from_hf(BASE | {"rope_parameters": {"rope_type": "default"}})


def test_another_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="ministral3: hidden_act 'gelu' is not supported"):
        Ministral3Config.from_hf(BASE | {"hidden_act": "gelu"})


def test_a_3b_as_published() -> None:
    """`config.json` of a model of Ministral 3's 3B, text alone."""
    config = Ministral3Config.from_hf(
        {
            "architectures": ["Ministral3ForCausalLM"],
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 3072,
            "intermediate_size": 9216,
            "max_position_embeddings": 262144,
            "model_type": "ministral3",
            "num_attention_heads": 32,
            "num_hidden_layers": 26,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_parameters": ROPE,
            "sliding_window": None,
            "tie_word_embeddings": True,
            "vocab_size": 131072,
        }
    )
    assert (config.head_dim, config.num_key_value_heads, config.max_model_len) == (128, 8, 262144)
    assert config.windows == (None,) * 26
    rope = config.rope
    assert (rope.rope_type, rope.rope_theta, rope.factor) == ("yarn", 1000000.0, 16.0)
    assert (rope.original_max_position_embeddings, rope.mscale, rope.mscale_all_dim) == (16384, 1.0, 1.0)
    assert config.query_scaling == 0.1
    assert config.tie_word_embeddings
