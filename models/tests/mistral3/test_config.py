"""Mistral 3: the text of either kind, and whose word counts on the tied head."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.ministral3.config import Ministral3Config
from trunnion_models.mistral3.config import Mistral3Config

TEXT: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
}


def nested(text: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {"model_type": "mistral3", "text_config": TEXT | text, "vision_config": {"model_type": "pixtral"}, **outer}


@pytest.mark.parametrize("kind", [{}, {"model_type": "mistral"}], ids=["absent", "mistral"])
def test_the_text_is_mistrals_unless_it_says_otherwise(kind: dict[str, Any]) -> None:
    config = Mistral3Config.from_hf(nested(kind))
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (8, 8, 1e-6)
    assert (config.max_model_len, config.windows) == (131072, (4096, 4096))
    assert (config.rope.rope_type, config.rope.rope_theta, config.query_scaling) == ("default", 10000.0, None)


def test_the_text_may_be_ministral_3s() -> None:
    config = Mistral3Config.from_hf(nested({"model_type": "ministral3"}))
    assert isinstance(config, Mistral3Config)
    assert vars(config) == vars(Ministral3Config.from_hf(TEXT))


@pytest.mark.parametrize(
    ("inner", "outer", "tied"),
    [
        ({}, {}, False),
        ({}, {"tie_word_embeddings": True}, True),
        ({}, {"tie_word_embeddings": False}, False),
        ({"tie_word_embeddings": True}, {}, True),
        ({"tie_word_embeddings": False}, {"tie_word_embeddings": True}, False),
        ({"tie_word_embeddings": True}, {"tie_word_embeddings": False}, True),
    ],
    ids=["neither", "outer", "outer-off", "inner", "inner-off", "inner-on"],
)
def test_the_text_has_the_last_word_on_its_head(inner: dict[str, Any], outer: dict[str, Any], tied: bool) -> None:
    assert Mistral3Config.from_hf(nested(inner, **outer)).tie_word_embeddings is tied


def test_another_kind_of_text_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="model_type 'mistral4' is not supported; choices: 'mistral', 'ministr"):
        Mistral3Config.from_hf(nested({"model_type": "mistral4"}))


@pytest.mark.parametrize("text", [{}, {"text_config": None}], ids=["absent", "null"])
def test_a_config_without_text_is_named(text: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="text_config must be a dictionary, got None"):
        Mistral3Config.from_hf({"model_type": "mistral3", **text})


def test_layer_types_of_mistral_are_checked() -> None:
    with pytest.raises(UnsupportedError, match="layer type 'full_attention' is not supported"):
        Mistral3Config.from_hf(nested({"layer_types": ["full_attention", "sliding_attention"]}))


def test_mistral_small_3_1_as_published() -> None:
    """`config.json` of Mistral Small 3.1 24B, which does not say that its head is its own."""
    config = Mistral3Config.from_hf(
        {
            "architectures": ["Mistral3ForConditionalGeneration"],
            "image_token_index": 10,
            "model_type": "mistral3",
            "multimodal_projector_bias": False,
            "projector_hidden_act": "gelu",
            "spatial_merge_size": 2,
            "text_config": {
                "head_dim": 128,
                "hidden_act": "silu",
                "hidden_size": 5120,
                "intermediate_size": 32768,
                "max_position_embeddings": 131072,
                "model_type": "mistral",
                "num_attention_heads": 32,
                "num_hidden_layers": 40,
                "num_key_value_heads": 8,
                "rms_norm_eps": 1e-05,
                "rope_theta": 1000000000.0,
                "sliding_window": None,
                "vocab_size": 131072,
            },
            "vision_config": {"hidden_size": 1024, "model_type": "pixtral", "num_hidden_layers": 24},
            "vision_feature_layer": -1,
        }
    )
    assert (config.head_dim, config.num_key_value_heads, config.max_model_len) == (128, 8, 131072)
    assert config.windows == (None,) * 40
    assert (config.rope.rope_type, config.rope.rope_theta, config.rms_norm_eps) == ("default", 1e9, 1e-5)
    assert not config.tie_word_embeddings
