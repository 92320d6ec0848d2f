"""EXAONE 4: windows by pattern or by layer type, and ropes in layers with windows only, if there are any."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.exaone4.config import Exaone4Config

BASE: dict[str, Any] = {
    "model_type": "exaone4",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 7,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def test_defaults_are_those_of_the_family() -> None:
    config = Exaone4Config.from_hf({key: value for key, value in BASE.items() if key != "sliding_window"})
    assert (config.head_dim, config.rms_norm_eps, config.max_model_len) == (16, 1e-5, 2048)
    assert config.windows == (4096, 4096, 4096, None, 4096, 4096)
    assert config.rotates == (True, True, True, False, True, True)
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 10000.0)
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window_pattern": 2}, (7, None, 7, None, 7, None)),
        ({"sliding_window_pattern": 5}, (7, 7, 7, 7, None, 7)),
        ({"sliding_window_pattern": "LLG"}, (7, 7, None, 7, 7, None)),
        ({"sliding_window_pattern": "LLLG"}, (7, 7, 7, None, 7, None)),
        ({"sliding_window_pattern": "LLLG", "layer_types": [FULL, SLIDING] * 3}, (None, 7, None, 7, None, 7)),
    ],
    ids=["2", "5", "LLG", "LLLG-and-the-last", "by-type"],
)
def test_layers_with_windows_rotate(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    config = Exaone4Config.from_hf(BASE | changes)
    assert config.windows == windows
    assert config.rotates == tuple(window is not None for window in windows)


@pytest.mark.parametrize("changes", [{}, {"layer_types": [FULL] * 6, "sliding_window_pattern": None}], ids=["", "type"])
def test_without_windows_all_layers_rotate(changes: dict[str, Any]) -> None:
    config = Exaone4Config.from_hf(BASE | changes | {"sliding_window": None})
    assert (config.windows, config.rotates) == ((None,) * 6, (True,) * 6)


def test_full_layers_of_a_model_with_a_window_do_not_rotate() -> None:
    config = Exaone4Config.from_hf(BASE | {"layer_types": [FULL] * 6})
    assert (config.windows, config.rotates) == ((None,) * 6, (False,) * 6)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window_pattern": "LLXG"}, "sliding_window_pattern 'LLXG' is not made of L and G"),
        ({"sliding_window_pattern": ""}, "sliding_window_pattern '' is not made of L and G"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern must be positive, got 0"),
        ({"sliding_window": None, "layer_types": [SLIDING] * 6}, "sliding_window is null"),
    ],
    ids=["letter", "empty", "zero", "null"],
)
def test_a_bad_value_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Exaone4Config.from_hf(BASE | changes)


def test_another_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="exaone4: hidden_act 'gelu' is not supported"):
        Exaone4Config.from_hf(BASE | {"hidden_act": "gelu"})


def test_exaone_4_0_32b_as_published() -> None:
    """`config.json` of EXAONE-4.0-32B, and what transformers 4.57 and 5.24 make of it."""
    config = Exaone4Config.from_hf(
        {
            "architectures": ["Exaone4ForCausalLM"],
            "eos_token_id": 361,
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "intermediate_size": 27392,
            "layer_types": ([SLIDING] * 3 + [FULL]) * 16,
            "max_position_embeddings": 131072,
            "model_type": "exaone4",
            "num_attention_heads": 40,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05,
            "rope_scaling": {
                "factor": 16.0,
                "high_freq_factor": 4.0,
                "low_freq_factor": 1.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "llama3",
            },
            "rope_theta": 1000000,
            "sliding_window": 4096,
            "sliding_window_pattern": "LLLG",
            "tie_word_embeddings": False,
            "vocab_size": 102400,
        }
    )
    assert (config.head_dim, config.num_key_value_heads, config.max_model_len) == (128, 8, 131072)
    assert config.windows == (4096, 4096, 4096, None) * 16
    assert config.rotates == (True, True, True, False) * 16
    rope = config.rope
    assert (rope.rope_type, rope.rope_theta, rope.factor) == ("llama3", 1000000.0, 16.0)
    assert (rope.low_freq_factor, rope.high_freq_factor, rope.original_max_position_embeddings) == (1.0, 4.0, 8192)
    assert not config.tie_word_embeddings
