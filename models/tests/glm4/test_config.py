"""GLM-4: what its configuration leaves out, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import AutoConfig

from trunnion.errors import UnsupportedError
from trunnion_models.glm4.config import Glm4Config

BASE: dict[str, Any] = {
    "model_type": "glm4",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DEFAULTS = (
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "tie_word_embeddings",
)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    assert getattr(Glm4Config.from_hf(BASE), name) == getattr(AutoConfig.for_model(**BASE), name)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"partial_rotary_factor": 0.25, "rope_theta": 5000.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "partial_rotary_factor": 0.25}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
    ],
    ids=["absent", "old", "new", "new without part", "yarn"],
)
def test_the_rope_is_that_of_transformers(changes: dict[str, Any]) -> None:
    truth = AutoConfig.for_model(**copy.deepcopy(BASE | changes)).rope_parameters
    rope = Glm4Config.from_hf(BASE | changes).rope
    for name in ("rope_type", "rope_theta", "partial_rotary_factor"):
        assert getattr(rope, name) == truth[name], name
    assert rope.factor == truth.get("factor")


def test_the_published_config_of_9b_0414() -> None:
    published = {
        "architectures": ["Glm4ForCausalLM"],
        "attention_bias": True,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 4096,
        "intermediate_size": 13696,
        "max_position_embeddings": 32768,
        "model_type": "glm4",
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 151552,
    }
    config = Glm4Config.from_hf(published)
    assert (config.head_dim, config.num_key_value_heads) == (128, 2)
    assert (config.rope.rotary_dim(128), config.rope.rope_theta) == (64, 1e4)
    assert config.attention_bias and not config.tie_word_embeddings
    assert (config.rms_norm_eps, config.max_model_len) == (1e-5, 32768)


def test_another_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="hidden_act 'gelu'"):
        Glm4Config.from_hf(BASE | {"hidden_act": "gelu"})
