"""Ministral: windows by layer type, by default in all layers if there is one."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.ministral.config import MinistralConfig

BASE: dict[str, Any] = {
    "model_type": "ministral",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def test_defaults_are_those_of_the_family() -> None:
    config = MinistralConfig.from_hf(BASE)
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (8, 8, 1e-6)
    assert (config.max_model_len, config.rope.rope_theta) == (131072, 10000.0)
    assert config.windows == (4096, 4096, 4096)
    assert config.query_scaling is None
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 7}, (7, 7, 7)),
        ({"sliding_window": None}, (None, None, None)),
        ({"sliding_window": 7, "layer_types": [SLIDING, FULL, SLIDING]}, (7, None, 7)),
        ({"sliding_window": None, "layer_types": [FULL] * 3}, (None, None, None)),
    ],
    ids=["all", "null", "by-type", "null-by-type"],
)
def test_windows(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert MinistralConfig.from_hf(BASE | changes).windows == windows


def test_sliding_layers_without_a_window_are_named() -> None:
    with pytest.raises(ConfigError, match="layers of type sliding_attention, and sliding_window is null"):
        MinistralConfig.from_hf(BASE | {"sliding_window": None, "layer_types": [SLIDING] * 3})


def test_another_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="ministral: hidden_act 'gelu' is not supported"):
        MinistralConfig.from_hf(BASE | {"hidden_act": "gelu"})
