"""Bad values in a `config.json` are named in one line, with the value and what was expected."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.llama.config import LlamaConfig
from trunnion_models.qwen3.config import Qwen3Config

GOOD: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_what_may_be_left_out_has_the_reference_defaults() -> None:
    config = LlamaConfig.from_hf(GOOD)
    assert (config.num_key_value_heads, config.head_dim) == (4, 16)
    assert (config.max_position_embeddings, config.rms_norm_eps, config.rope.rope_theta) == (2048, 1e-6, 10000.0)
    assert not (config.attention_bias or config.mlp_bias or config.tie_word_embeddings)


@pytest.mark.parametrize("nothing", [{"num_key_value_heads": None}, {"head_dim": None}, {"rope_scaling": None}])
def test_null_means_not_given(nothing: dict[str, Any]) -> None:
    assert LlamaConfig.from_hf(GOOD | nothing) == LlamaConfig.from_hf(GOOD)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": "64"}, "hidden_size must be int, got '64'"),
        ({"hidden_size": 64.0}, "hidden_size must be int, got 64.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be int, got True"),
        ({"vocab_size": 0}, "vocab_size must be positive, got 0"),
        ({"vocab_size": -1}, "vocab_size must be positive, got -1"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be positive, got 0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be positive, got nan"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings must be bool, got 'false'"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"num_attention_heads": 5}, "hidden_size 64 is not a multiple of num_attention_heads 5"),
        ({"num_attention_heads": 0}, "num_attention_heads must be positive, got 0"),
        ({"head_dim": 0}, "head_dim must be positive, got 0"),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_bad_value_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LlamaConfig.from_hf(GOOD | changes)
    assert words in str(caught.value)
    assert str(caught.value).startswith("config of llama: ")
    assert "\n" not in str(caught.value)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="hidden_act 'gelu' is not supported; choices: 'silu'"):
        LlamaConfig.from_hf(GOOD | {"hidden_act": "gelu"})


def test_layer_types_are_checked() -> None:
    with pytest.raises(ConfigError, match="layer_types has 1 entries for 2 layers"):
        Qwen3Config.from_hf(GOOD | {"layer_types": ["full_attention"]})
    with pytest.raises(UnsupportedError, match="layer type 'chunked_attention' is not supported"):
        Qwen3Config.from_hf(GOOD | {"layer_types": ["full_attention", "chunked_attention"]})
