"""Phi-3: what its configuration leaves out, where the original length stands, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import AutoConfig

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.phi3.config import Phi3Config

BASE: dict[str, Any] = {
    "model_type": "phi3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
LONGROPE: dict[str, Any] = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6}
PHI_4_MINI: dict[str, Any] = BASE | {
    "num_key_value_heads": 2,
    "max_position_embeddings": 131072,
    "original_max_position_embeddings": 4096,
    "partial_rotary_factor": 0.75,
    "rope_scaling": LONGROPE,
    "sliding_window": 262144,
    "tie_word_embeddings": True,
}
"""In the spelling of Phi-4-mini, with fewer features."""


def test_defaults_are_those_of_the_family() -> None:
    config, truth = Phi3Config.from_hf(BASE), AutoConfig.for_model(**BASE)
    assert config.num_key_value_heads == truth.num_key_value_heads == 4
    assert config.head_dim == 16
    for name in ("rms_norm_eps", "max_position_embeddings", "sliding_window", "tie_word_embeddings"):
        assert getattr(config, name) == getattr(truth, name), name
    assert (config.rope.rope_type, config.rope.rope_theta, config.rope.partial_rotary_factor) == ("default", 1e4, 1.0)
    assert not config.attention_bias and not config.mlp_bias


def test_part_of_a_head_turns_by_factors_that_the_original_length_chooses() -> None:
    config = Phi3Config.from_hf(PHI_4_MINI)
    assert config.rope.rope_type == "longrope"
    assert config.rope.rotary_dim(config.head_dim) == 12
    assert config.rope.original_max_position_embeddings == 4096
    assert config.max_model_len == 131072
    assert config.sliding_window == 262144
    assert config.tie_word_embeddings


@pytest.mark.parametrize(
    ("top_level", "inner"), [(16, None), (16, 32), (None, 32), (None, None)], ids=["top", "both", "inner", "none"]
)
def test_the_original_length_is_that_of_transformers(top_level: int | None, inner: int | None) -> None:
    scaling = LONGROPE | ({} if inner is None else {"original_max_position_embeddings": inner})
    changes = {} if top_level is None else {"original_max_position_embeddings": top_level}
    config = {key: value for key, value in PHI_4_MINI.items() if not key.startswith("original")}
    config = config | changes | {"rope_scaling": scaling}
    truth = AutoConfig.for_model(**copy.deepcopy(config)).rope_parameters["original_max_position_embeddings"]
    assert Phi3Config.from_hf(config).rope.original_max_position_embeddings == truth


@pytest.mark.parametrize("name", ["longrope", "su"])
def test_the_new_spelling_is_read_and_the_oldest_type(name: str) -> None:
    old = Phi3Config.from_hf(PHI_4_MINI)
    new = {key: value for key, value in PHI_4_MINI.items() if key not in ("rope_scaling", "partial_rotary_factor")}
    rope = {key: value for key, value in LONGROPE.items() if key != "type"}
    rope |= {"rope_type": name, "partial_rotary_factor": 0.75, "rope_theta": 10000.0}
    assert Phi3Config.from_hf(new | {"rope_parameters": rope}) == old


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"attention_bias": True}, "attention_bias True"),
        ({"mlp_bias": True}, "mlp_bias True"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope type 'yarn' .* choices: 'default', 'longrope'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "rope type 'linear'"),
        ({"rope_scaling": LONGROPE | {"short_mscale": 1.1}}, "short_mscale"),
    ],
    ids=["act", "attention_bias", "mlp_bias", "yarn", "linear", "mscale"],
)
def test_what_would_change_the_result_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        Phi3Config.from_hf(BASE | changes)


def test_factors_that_are_missing_are_named() -> None:
    scaling = {key: value for key, value in LONGROPE.items() if key != "long_factor"}
    with pytest.raises(ConfigError, match="'long_factor'"):
        Phi3Config.from_hf(PHI_4_MINI | {"rope_scaling": scaling})
