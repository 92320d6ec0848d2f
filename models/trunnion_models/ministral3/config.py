"""Ministral 3 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, layer_types, num_layers, read_fields, require, windows_by_type

DEFAULTS: dict[str, Any] = {
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "num_key_value_heads": 8,
    "sliding_window": None,
}
ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1000000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
"""Of a config that has no rope."""


@dataclass(frozen=True, kw_only=True)
class Ministral3Config:
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
    query_scaling: float | None = None
    """`llama_4_scaling_beta` of the rope in HF: the queries at position p grow by this times the logarithm of 1 + the
    number of original lengths before p; None = they do not."""
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Ministral3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        rope = config.get("rope_scaling") or config.get("rope_parameters") or ROPE
        config = {**DEFAULTS, **config, "rope_scaling": rope}
        # Checks that it is a dictionary.
        read_rope(config)
        if rope.get("llama_4_scaling_beta") is None:
            raise ConfigError("config of ministral3: rope_parameters must have llama_4_scaling_beta")
        return cls.with_one_window(config, query_scaling=float(rope["llama_4_scaling_beta"]))

    @classmethod
    def with_one_window(cls, config: Mapping[str, Any], query_scaling: float | None) -> Ministral3Config:
        """Read a `config.json` with its defaults, whose `sliding_window` is that of all layers."""
        kind = "full_attention" if config["sliding_window"] is None else "sliding_attention"
        # transformers passes over them, so that any other than these would change the result.
        types = layer_types(config, [kind] * num_layers(config), [kind])
        return cls.with_windows(config, windows_by_type(config, types), query_scaling)

    @classmethod
    def with_windows(
        cls, config: Mapping[str, Any], windows: tuple[int | None, ...], query_scaling: float | None = None
    ) -> Ministral3Config:
        """Read what has no defaults of its own."""
        require(config, "hidden_act", "silu", ["silu"])
        derived = {"rope": read_rope(config), "windows": windows, "query_scaling": query_scaling}
        return cls(**read_fields(cls, config, **derived, **attention_heads(config)))
