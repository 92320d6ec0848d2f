"""Phi-3 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import read_rope
from trunnion_models.fields import attention_heads, read_fields, require
from trunnion_models.llama.config import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class Phi3Config(LlamaConfig):
    """As Llama, without biases, with an optional window over all layers."""

    rms_norm_eps: float = 1e-5

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Phi3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        # transformers reads neither: a checkpoint that sets one is not a Phi-3 we know.
        require(config, "attention_bias", False, [False])
        require(config, "mlp_bias", False, [False])
        # The original length stands at the top level; there a default wins over rope_scaling's, as in transformers.
        config = {"max_position_embeddings": 4096, "original_max_position_embeddings": 4096, **config}
        rope = read_rope(config, takes_partial=True)
        require({**config, "rope type": rope.rope_type}, "rope type", "default", ["default", "longrope"])
        fixed = {"attention_bias": False, "mlp_bias": False}
        return cls(**read_fields(cls, config, rope=rope, **fixed, **attention_heads(config)))
