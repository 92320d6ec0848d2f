"""Granite-MoE configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, family, read_fields, require


@dataclass(frozen=True, kw_only=True)
class GraniteMoeConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of one expert."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    max_position_embeddings: int
    num_local_experts: int = 8
    num_experts_per_tok: int = 2
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    """Factor of q k^T, in place of `head_dim ** -0.5`."""
    residual_multiplier: float = 1.0
    """Of what attention and experts add to the residual."""
    logits_scaling: float = 1.0
    """Logits are divided by it."""
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> GraniteMoeConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 2048, **config}
        result = cls(**read_fields(cls, config, rope=read_rope(config), **attention_heads(config)))
        if result.num_experts_per_tok > result.num_local_experts:
            raise ConfigError(
                f"config of {family(config)}: num_experts_per_tok {result.num_experts_per_tok} is above "
                f"num_local_experts {result.num_local_experts}"
            )
        return result
