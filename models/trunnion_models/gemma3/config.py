"""Gemma 3 text configuration in the field names of the published `config.json` (`model_type` `gemma3_text`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, layer_types, num_layers, read_fields, require, window_by_layer

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class Gemma3TextConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    layer_types: tuple[str, ...]
    ropes: Mapping[str, RopeParameters]
    """By layer type."""
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all."""
    max_position_embeddings: int
    query_pre_attn_scalar: float = 256
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    final_logit_softcapping: float | None = None
    tie_word_embeddings: bool = True

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.max_position_embeddings

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Gemma3TextConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_activation", "gelu_pytorch_tanh", ["gelu_pytorch_tanh"])
        require(config, "use_bidirectional_attention", False, [False])
        # transformers reads this one and does not apply it; a checkpoint that sets it is not a Gemma 3 we know.
        require(config, "attn_logit_softcapping", None, [None])
        config = {"max_position_embeddings": 131072, "rope_local_base_freq": 10000.0, **config}
        pattern = config.get("sliding_window_pattern", 6)
        default = [LAYER_TYPES[bool((index + 1) % pattern)] for index in range(num_layers(config))]
        types = layer_types(config, default, LAYER_TYPES)
        return cls(
            **read_fields(
                cls,
                config,
                layer_types=types,
                ropes={kind: read_rope(config, kind, default_theta=1e6) for kind in dict.fromkeys(types)},
                windows=window_by_layer(config, types, config.get("sliding_window", 4096)),
                **attention_heads(config, 256),
            )
        )
