"""Mixtral configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import read_rope
from trunnion_models.fields import attention_heads, family, read_fields, require
from trunnion_models.llama.config import LlamaConfig


@dataclass(frozen=True, kw_only=True)
class MixtralConfig(LlamaConfig):
    """As Llama, without biases; `intermediate_size` is that of one expert."""

    rms_norm_eps: float = 1e-5
    num_local_experts: int = 8
    num_experts_per_tok: int = 2

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> MixtralConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 4096 * 32, "num_key_value_heads": 8, **config}
        rope = read_rope(config, default_theta=1000000.0)
        fixed = {"attention_bias": False, "mlp_bias": False}
        result = cls(**read_fields(cls, config, rope=rope, **fixed, **attention_heads(config)))
        if result.num_experts_per_tok > result.num_local_experts:
            raise ConfigError(
                f"config of {family(config)}: num_experts_per_tok {result.num_experts_per_tok} is above "
                f"num_local_experts {result.num_local_experts}"
            )
        return result
