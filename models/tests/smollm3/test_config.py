"""SmolLM3: which layers rotate, which have a window, and a head that is tied unless the config says otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.smollm3.config import SmolLM3Config

BASE: dict[str, Any] = {
    "model_type": "smollm3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
}
WINDOWS: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 7}
FULL, SLIDING = "full_attention", "sliding_attention"


def test_defaults_are_those_of_the_family() -> None:
    config = SmolLM3Config.from_hf(BASE)
    assert (config.num_key_value_heads, config.head_dim, config.rms_norm_eps) == (4, 8, 1e-6)
    assert (config.rope.rope_theta, config.max_model_len) == (2000000.0, 32768)
    assert config.rotates == (True, True, True, False, True)
    assert config.windows == (None,) * 5
    assert config.tie_word_embeddings
    assert not (config.attention_bias or config.mlp_bias)
    assert SmolLM3Config.from_hf({**BASE, "num_key_value_heads": None}).num_key_value_heads == 8


@pytest.mark.parametrize(
    ("changes", "rotates"),
    [
        ({"no_rope_layer_interval": 2}, (1, 0, 1, 0, 1)),
        ({"no_rope_layers": [0, 1, 0, 0, 1]}, (0, 1, 0, 0, 1)),
        ({"no_rope_layers": [1, 1, 0, 0, 0, 1, 1], "no_rope_layer_interval": 2}, (1, 1, 0, 0, 0)),
    ],
    ids=["interval", "list", "longer-list"],
)
def test_layers_without_a_rope(changes: dict[str, Any], rotates: tuple[int, ...]) -> None:
    assert SmolLM3Config.from_hf(BASE | changes).rotates == tuple(map(bool, rotates))


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 7}, (None,) * 5),
        ({"use_sliding_window": True}, (None,) * 5),
        (WINDOWS, (None, None, None, 7, None)),
        (WINDOWS | {"no_rope_layers": [0, 1, 0, 0, 1]}, (7, None, 7, 7, None)),
        (WINDOWS | {"layer_types": [SLIDING] + [FULL] * 4}, (7, None, None, None, None)),
    ],
    ids=["off", "no-window", "without-rope", "by-list", "by-type"],
)
def test_windows(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert SmolLM3Config.from_hf(BASE | changes).windows == windows


@pytest.mark.parametrize("changes", [{}, {"sliding_window": 7}, {"use_sliding_window": True}], ids=str)
def test_layer_types_beside_windows_that_are_off_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="need use_sliding_window and a sliding_window"):
        SmolLM3Config.from_hf(BASE | changes | {"layer_types": [SLIDING] * 5})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"no_rope_layers": [1, 1]}, "no_rope_layers must be 0 or 1 for each of 5 layers"),
        ({"no_rope_layers": [1, 2, 3, 4, 5]}, "no_rope_layers must be 0 or 1 for each of 5 layers"),
        ({"no_rope_layer_interval": 0}, "no_rope_layer_interval must be positive, got 0"),
    ],
    ids=["short", "indices", "interval"],
)
def test_a_bad_value_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SmolLM3Config.from_hf(BASE | changes)


def test_another_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="smollm3: hidden_act 'gelu' is not supported"):
        SmolLM3Config.from_hf(BASE | {"hidden_act": "gelu"})


def test_smollm3_3b_as_published() -> None:
    """`config.json` of SmolLM3-3B, which says nothing of its tied head; what transformers 4.57 and 5.24 make of it."""
    config = SmolLM3Config.from_hf(
        {
            "architectures": ["SmolLM3ForCausalLM"],
            "attention_bias": False,
            "eos_token_id": 128012,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "layer_types": [FULL] * 36,
            "max_position_embeddings": 65536,
            "max_window_layers": 28,
            "mlp_bias": False,
            "model_type": "smollm3",
            "no_rope_layer_interval": 4,
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "num_key_value_heads": 4,
            "pretraining_tp": 2,
            "rms_norm_eps": 1e-06,
            "rope_scaling": None,
            "rope_theta": 5000000.0,
            "sliding_window": None,
            "use_sliding_window": False,
            "vocab_size": 128256,
        }
    )
    assert (config.head_dim, config.num_key_value_heads, config.max_model_len) == (128, 4, 65536)
    assert config.rotates == (True, True, True, False) * 9
    assert config.windows == (None,) * 36
    assert (config.rope.rope_type, config.rope.rope_theta) == ("default", 5000000.0)
    assert config.tie_word_embeddings
