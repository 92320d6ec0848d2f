"""Gemma 2 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import (
    attention_heads,
    layer_types,
    num_layers,
    positive_or_none,
    read_fields,
    require,
    windows_by_type,
)

LAYER_TYPES = ("sliding_attention", "full_attention")


@dataclass(frozen=True, kw_only=True)
class Gemma2Config:
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
    attn_logit_softcapping: float | None
    """Scores are kept within this, before the softmax; None = as they are."""
    final_logit_softcapping: float | None
    max_position_embeddings: int
    query_pre_attn_scalar: float = 256
    """The softmax's scale is its inverse root, whatever the head size."""
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = True

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Gemma2Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        # Published configs have a `hidden_act` beside it, which transformers does not read.
        require(config, "hidden_activation", "gelu_pytorch_tanh", ["gelu_pytorch_tanh"])
        require(config, "use_bidirectional_attention", False, [False])
        config = {"max_position_embeddings": 8192, "num_key_value_heads": 4, "sliding_window": 4096, **config}
        default = [LAYER_TYPES[index % 2] for index in range(num_layers(config))]
        types = layer_types(config, default, LAYER_TYPES)
        return cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config),
                windows=windows_by_type(config, types),
                attn_logit_softcapping=positive_or_none(config, "attn_logit_softcapping", 50.0),
                final_logit_softcapping=positive_or_none(config, "final_logit_softcapping", 30.0),
                **attention_heads(config, 256),
            )
        )
