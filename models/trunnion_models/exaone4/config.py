"""EXAONE 4 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import (
    attention_heads,
    integer,
    layer_types,
    num_layers,
    read_fields,
    require,
    windows_by_type,
)

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class Exaone4Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    rotates: tuple[bool, ...]
    """Per layer: a model with windows rotates in layers with a window only, one without rotates in all."""
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Exaone4Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 2048, "num_key_value_heads": 32, "sliding_window": 4096, **config}
        types = layer_types(config, _types_by_pattern(config), LAYER_TYPES)
        windows = windows_by_type(config, types)
        rotates = tuple(config["sliding_window"] is None or window is not None for window in windows)
        derived = {"rope": read_rope(config), "rotates": rotates, "windows": windows}
        return cls(**read_fields(cls, config, **derived, **attention_heads(config)))


def _types_by_pattern(config: Mapping[str, Any]) -> list[str]:
    """Without `layer_types`: `sliding_window_pattern` is "LLLG" (local and global layers, repeated, the last of all one
    global), or 4 for that each fourth layer is global."""
    count = num_layers(config)
    if config["sliding_window"] is None:
        return ["full_attention"] * count
    pattern = config.get("sliding_window_pattern", 4)
    if not isinstance(pattern, str):
        period = integer(config, "sliding_window_pattern", 4)
        return [LAYER_TYPES[(index + 1) % period != 0] for index in range(count)]
    if not pattern or set(pattern) - set("LG"):
        raise ConfigError(f"config of exaone4: sliding_window_pattern {pattern!r} is not made of L and G")
    types = [LAYER_TYPES[pattern[index % len(pattern)] == "L"] for index in range(count)]
    return [*types[:-1], "full_attention"]
