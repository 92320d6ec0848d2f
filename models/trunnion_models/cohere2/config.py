"""Cohere 2 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
DEFAULTS = {"max_position_embeddings": 8192, "sliding_window": 4096}
ONLY: dict[str, Any] = {
    "hidden_act": "silu",
    "order_of_interleaved_layers": "local_attn_first",
    "position_embedding_type": "rope_gptj",
    "rotary_pct": 1.0,
    "use_gated_activation": True,
    "use_parallel_block": True,
    "use_qk_norm": False,
}
"""What published files say. transformers passes over all but the first: another value is of a model we do not know."""


@dataclass(frozen=True, kw_only=True)
class Cohere2Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all, without a rope."""
    max_position_embeddings: int
    layer_norm_eps: float = 1e-5
    logit_scale: float = 0.0625
    attention_bias: bool = False
    tie_word_embeddings: bool = True

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Cohere2Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        for name, value in ONLY.items():
            require(config, name, value, [value])
        config = {**DEFAULTS, **config}
        pattern = integer(config, "sliding_window_pattern", 4)
        default = [LAYER_TYPES[bool((index + 1) % pattern)] for index in range(num_layers(config))]
        return cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config),
                windows=windows_by_type(config, layer_types(config, default, LAYER_TYPES)),
                **attention_heads(config),
            )
        )
