"""Qwen2 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, layer_types, num_layers, read_fields, require, window_by_layer


@dataclass(frozen=True, kw_only=True)
class Qwen2Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen2Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 32768, **config}
        return cls(
            **read_fields(cls, config, rope=read_rope(config), windows=upper_windows(config), **attention_heads(config))
        )


def upper_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Windows from layer `max_window_layers` on (or as `layer_types` says), if `use_sliding_window` is set."""
    count = num_layers(config)
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    first = config.get("max_window_layers", 28)
    default = [
        "sliding_attention" if window is not None and index >= first else "full_attention" for index in range(count)
    ]
    return window_by_layer(config, layer_types(config, default, ["full_attention", "sliding_attention"]), window)
