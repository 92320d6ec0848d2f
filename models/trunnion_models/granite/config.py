"""Granite configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import read_rope
from trunnion_models.fields import attention_heads, read_fields, require
from trunnion_models.llama.config import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class GraniteConfig(LlamaConfig):
    """As Llama, and four multipliers."""

    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Of what attention and MLP add to the residual."""
    attention_multiplier: float = 1.0
    """The scale of the softmax, whatever the head size."""
    logits_scaling: float = 1.0
    """What logits are divided by."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> GraniteConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 2048, **config}
        return cls(**read_fields(cls, config, rope=read_rope(config), sliding_window=None, **attention_heads(config)))
