"""Mistral has a window unless told otherwise, the same in all layers, and no biases."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import UnsupportedError
from trunnion_models.mistral.config import MistralConfig

BASE: dict[str, Any] = {
    "model_type": "mistral",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FULL, SLIDING = ["full_attention"] * 2, ["sliding_attention"] * 2


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({}, 4096),
        ({"sliding_window": None}, None),
        ({"sliding_window": 5}, 5),
        ({"sliding_window": 5, "layer_types": SLIDING}, 5),
        ({"sliding_window": None, "layer_types": FULL}, None),
    ],
    ids=["absent", "null", "5", "5-by-type", "null-by-type"],
)
def test_the_window_is_that_of_all_layers(changes: dict[str, Any], window: int | None) -> None:
    assert MistralConfig.from_hf(BASE | changes).sliding_window == window


@pytest.mark.parametrize("types", [FULL, [*FULL[:1], *SLIDING[:1]]], ids=["full", "alternating"])
def test_layer_types_that_transformers_would_pass_over_are_refused(types: list[str]) -> None:
    with pytest.raises(UnsupportedError, match="mistral: layer type 'full_attention' is not supported"):
        MistralConfig.from_hf(BASE | {"layer_types": types})


def test_there_are_no_biases() -> None:
    config = MistralConfig.from_hf(BASE | {"attention_bias": True, "mlp_bias": True})
    assert not config.attention_bias
    assert not config.mlp_bias


def test_what_may_be_left_out_has_the_defaults_of_transformers() -> None:
    config = MistralConfig.from_hf(BASE)
    assert (config.head_dim, config.max_model_len, config.rms_norm_eps) == (16, 131072, 1e-6)
    assert config.rope.rope_theta == 10000.0
    assert not config.tie_word_embeddings
    assert MistralConfig.from_hf({**BASE, "num_key_value_heads": None}).num_key_value_heads == 4
    without = {key: value for key, value in BASE.items() if key != "num_key_value_heads"}
    assert MistralConfig.from_hf({**without, "num_attention_heads": 32}).num_key_value_heads == 8


def test_devstral_small_as_published() -> None:
    """`config.json` of Devstral Small 1.1 (2507): heads that are not hidden / heads, a null window."""
    config = MistralConfig.from_hf(
        {
            "architectures": ["MistralForCausalLM"],
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
            "tie_word_embeddings": False,
            "vocab_size": 131072,
        }
    )
    assert (config.head_dim, config.num_key_value_heads, config.sliding_window) == (128, 8, None)
    assert (config.rope.rope_type, config.rope.rope_theta, config.max_model_len) == ("default", 1e9, 131072)
    assert not config.tie_word_embeddings
