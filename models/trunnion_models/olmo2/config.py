"""OLMo 2 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, num_layers, read_fields, require

DEFAULTS: dict[str, Any] = {"max_position_embeddings": 2048}


@dataclass(frozen=True, kw_only=True)
class Olmo2Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layer_types: tuple[str, ...]
    """All `full_attention`; OLMo 3 has others."""
    ropes: Mapping[str, RopeParameters]
    """By layer type."""
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request that the positions of all layers reach, in tokens."""
        return min(rope.max_model_len for rope in self.ropes.values())

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Olmo2Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {**DEFAULTS, **config}
        kind, count = "full_attention", num_layers(config)
        derived = {"layer_types": (kind,) * count, "windows": (None,) * count, "ropes": {kind: read_rope(config)}}
        return cls(**read_fields(cls, config, **derived, **attention_heads(config)))
