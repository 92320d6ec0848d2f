"""Gemma 3, alone or beside a tower: what its configuration leaves out, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import AutoConfig

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.gemma3.config import Gemma3Config, Gemma3TextConfig

BASE: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
PUBLISHED_4B: dict[str, Any] = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "eos_token_id": [1, 106],
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model", "patch_size": 14},
}
"""What Gemma 3 4B publishes."""
LARGER: dict[str, dict[str, Any]] = {
    "12b": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
    },
    "27b": {
        "head_dim": 128,
        "hidden_size": 5376,
        "intermediate_size": 21504,
        "num_attention_heads": 32,
        "num_hidden_layers": 62,
        "num_key_value_heads": 16,
        "query_pre_attn_scalar": 168,
    },
}


def nested(text: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **BASE, **text}, **outer}


def test_defaults_are_those_of_the_family() -> None:
    config = Gemma3TextConfig.from_hf(BASE)
    assert config.tie_word_embeddings
    assert (config.head_dim, config.query_pre_attn_scalar) == (256, 256)
    assert config.windows == (4096, 4096, 4096, 4096, 4096, None, 4096)
    assert config.ropes["sliding_attention"].rope_theta == 10000.0
    assert config.ropes["full_attention"].rope_theta == 1000000.0


@pytest.mark.parametrize("name", ["num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "attention_bias"])
def test_other_defaults_are_those_of_transformers(name: str) -> None:
    config = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert getattr(Gemma3TextConfig.from_hf(config), name) == getattr(AutoConfig.for_model(**config), name)


@pytest.mark.parametrize("size", ["4b", *LARGER])
def test_the_published_configs_beside_a_tower(size: str) -> None:
    published = copy.deepcopy(PUBLISHED_4B)
    published["text_config"] |= LARGER.get(size, {})
    config, truth = Gemma3Config.from_hf(published), AutoConfig.for_model(**copy.deepcopy(published)).text_config
    names = ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers")
    for name in (*names, "query_pre_attn_scalar", "tie_word_embeddings", "max_position_embeddings"):
        assert getattr(config, name) == getattr(truth, name), name
    assert config.layer_types == tuple(truth.layer_types)
    assert config.windows == tuple(1024 if kind == "sliding_attention" else None for kind in truth.layer_types)
    for kind, rope in truth.rope_parameters.items():
        read = config.ropes[kind]
        assert (read.rope_type, read.rope_theta, read.factor) == (
            rope["rope_type"],
            rope["rope_theta"],
            rope.get("factor"),
        )


def test_the_newer_spelling_is_read_with_what_was_left_beside_it() -> None:
    """As transformers wrote it for a while: a rope per layer type, and half of one for all."""
    ropes = {
        "full_attention": {"factor": 8.0, "rope_theta": 5e5, "rope_type": "linear"},
        "rope_theta": None,
        "rope_type": "default",
        "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"},
    }
    config = Gemma3TextConfig.from_hf(BASE | {"rope_parameters": ropes})
    full, sliding = config.ropes["full_attention"], config.ropes["sliding_attention"]
    assert (full.rope_type, full.rope_theta, full.factor) == ("linear", 5e5, 8.0)
    assert (sliding.rope_type, sliding.rope_theta, sliding.factor) == ("default", 100.0, None)


@pytest.mark.parametrize(
    ("inner", "outer", "tied"),
    [
        ({}, {}, True),
        ({}, {"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, False),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, True),
    ],
    ids=["neither", "outer", "inner-off", "inner-on"],
)
def test_the_text_has_the_last_word_on_its_head(inner: dict[str, Any], outer: dict[str, Any], tied: bool) -> None:
    assert Gemma3Config.from_hf(nested(inner, **outer)).tie_word_embeddings is tied


@pytest.mark.parametrize("text", [{}, {"text_config": None}], ids=["absent", "null"])
def test_a_config_without_text_is_named(text: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="text_config must be a dictionary, got None"):
        Gemma3Config.from_hf({"model_type": "gemma3", **text})


@pytest.mark.parametrize(
    "changes",
    [{"final_logit_softcapping": 30.0}, {"model_type": "gemma2"}, {"use_bidirectional_attention": True}],
    ids=lambda changes: next(iter(changes)),
)
def test_text_that_is_another_beside_a_tower_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        Gemma3Config.from_hf(nested(changes))


@pytest.mark.parametrize("pattern", [0, -6, "LLLG", 2.5], ids=str)
def test_a_pattern_that_is_no_period_is_named(pattern: Any) -> None:
    with pytest.raises(ConfigError, match="sliding_window_pattern must be"):
        Gemma3TextConfig.from_hf(BASE | {"sliding_window_pattern": pattern})


def test_windows_without_a_size_are_named() -> None:
    with pytest.raises(ConfigError, match="sliding_window is null"):
        Gemma3TextConfig.from_hf(BASE | {"sliding_window": None})


def test_a_scaled_rope_is_that_of_the_full_layers_only() -> None:
    config = Gemma3TextConfig.from_hf(BASE | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert config.ropes["full_attention"].factor == 8.0
    assert config.ropes["sliding_attention"].rope_type == "default"


@pytest.mark.parametrize(
    "changes",
    [
        {"use_bidirectional_attention": True},
        {"attn_logit_softcapping": 50.0},
        {"hidden_activation": "silu"},
        {"rope_parameters": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}},
        {"rope_scaling": {"type": "linear", "factor": 8.0}, "rope_parameters": {"full_attention": {"rope_theta": 1e6}}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_would_change_the_result_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        Gemma3TextConfig.from_hf(BASE | changes)
