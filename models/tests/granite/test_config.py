"""Granite: what its configuration leaves out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.granite.config import GraniteConfig

BASE: dict[str, Any] = {
    "model_type": "granite",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DEFAULTS = (
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
    "embedding_multiplier",
    "residual_multiplier",
    "attention_multiplier",
    "logits_scaling",
)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    assert getattr(GraniteConfig.from_hf(BASE), name) == getattr(AutoConfig.for_model(**BASE), name)


def test_the_published_config_of_3_3_2b() -> None:
    published = {
        "architectures": ["GraniteForCausalLM"],
        "attention_bias": False,
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "logits_scaling": 8.0,
        "max_position_embeddings": 131072,
        "mlp_bias": False,
        "model_type": "granite",
        "num_attention_heads": 32,
        "num_hidden_layers": 40,
        "num_key_value_heads": 8,
        "residual_multiplier": 0.22,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 10000000.0,
        "tie_word_embeddings": True,
        "vocab_size": 49159,
    }
    config = GraniteConfig.from_hf(published)
    assert (config.head_dim, config.num_key_value_heads) == (64, 8)
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 1e7)
    assert (config.embedding_multiplier, config.residual_multiplier) == (12.0, 0.22)
    assert (config.attention_multiplier, config.logits_scaling) == (0.015625, 8.0)
    assert config.sliding_window is None
    assert config.tie_word_embeddings
    assert config.max_model_len == 131072


def test_another_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="hidden_act 'gelu'"):
        GraniteConfig.from_hf(BASE | {"hidden_act": "gelu"})


@pytest.mark.parametrize("value", [0, -1.0, "12"])
def test_a_multiplier_that_is_no_positive_number_is_named(value: Any) -> None:
    with pytest.raises(ConfigError, match="embedding_multiplier must be"):
        GraniteConfig.from_hf(BASE | {"embedding_multiplier": value})
