"""Qwen2's windows: switched on or off, from a layer upwards, or by layer type."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError
from trunnion_models.qwen2.config import Qwen2Config

BASE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 7,
}
ON = {"use_sliding_window": True}
TYPES = ["sliding_attention", "full_attention"] * 2


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({}, (None,) * 4),
        ({"use_sliding_window": False, "max_window_layers": 0}, (None,) * 4),
        (ON, (None,) * 4),
        (ON | {"max_window_layers": 3}, (None, None, None, 7)),
        (ON | {"max_window_layers": 0}, (7,) * 4),
        (ON | {"sliding_window": None, "max_window_layers": 0}, (None,) * 4),
        (ON | {"layer_types": TYPES}, (7, None, 7, None)),
    ],
    ids=["absent", "off", "above-all-layers", "last-layer", "all-layers", "null", "by-type"],
)
def test_windows(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert Qwen2Config.from_hf(BASE | changes).windows == windows


def test_layers_that_slide_without_a_window_are_refused() -> None:
    with pytest.raises(ConfigError, match="layers of type sliding_attention, and use_sliding_window is false"):
        Qwen2Config.from_hf(BASE | {"layer_types": TYPES, "use_sliding_window": False, "sliding_window": 7})
