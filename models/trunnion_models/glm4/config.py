"""GLM-4 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, read_fields, require


@dataclass(frozen=True, kw_only=True)
class Glm4Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    max_position_embeddings: int
    rms_norm_eps: float = 1.5625e-07
    attention_bias: bool = True
    """On q, k and v; the output projection never has one."""
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Glm4Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 2, "partial_rotary_factor": 0.5}
        config = {**defaults, **config}
        return cls(
            **read_fields(cls, config, rope=read_rope(config, takes_partial=True), **attention_heads(config, 128))
        )
