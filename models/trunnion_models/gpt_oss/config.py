"""gpt-oss configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import (
    attention_heads,
    family,
    layer_types,
    num_layers,
    read_fields,
    require,
    windows_by_type,
)

LAYER_TYPES = ("sliding_attention", "full_attention")
DEFAULTS: dict[str, Any] = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 128}
ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""Of a configuration that has none, as transformers reads it."""


@dataclass(frozen=True, kw_only=True)
class GptOssConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Of one expert."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all."""
    max_position_embeddings: int
    num_local_experts: int = 128
    num_experts_per_tok: int = 4
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> GptOssConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {**DEFAULTS, **config}
        if not config.get("rope_parameters") and not config.get("rope_scaling"):
            config["rope_scaling"] = ROPE
        default = [LAYER_TYPES[index % 2] for index in range(num_layers(config))]
        windows = windows_by_type(config, layer_types(config, default, LAYER_TYPES))
        rope = read_rope(config, default_theta=150000.0)
        result = cls(**read_fields(cls, config, rope=rope, windows=windows, **attention_heads(config, 64)))
        if result.num_experts_per_tok > result.num_local_experts:
            raise ConfigError(
                f"config of {family(config)}: num_experts_per_tok {result.num_experts_per_tok} is above "
                f"num_local_experts {result.num_local_experts}"
            )
        return result
