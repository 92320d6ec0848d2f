"""Gemma 3 configuration in the field names of the published `config.json`: of the text alone, or beside a tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.hf_config import text_config
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
DEFAULTS = {
    "max_position_embeddings": 131072,
    "num_key_value_heads": 4,
    "rope_local_base_freq": 10000.0,
    "sliding_window": 4096,
}
BESIDE_A_TOWER = {"vocab_size": 262208, "num_attention_heads": 8}
"""What Gemma 3 4B does not say of its text."""


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
        _check_ropes(config)
        config = {**DEFAULTS, **config}
        pattern = integer(config, "sliding_window_pattern", 6)
        default = [LAYER_TYPES[bool((index + 1) % pattern)] for index in range(num_layers(config))]
        types = layer_types(config, default, LAYER_TYPES)
        return cls(
            **read_fields(
                cls,
                config,
                layer_types=types,
                ropes={kind: read_rope(config, kind, default_theta=1e6) for kind in dict.fromkeys(types)},
                windows=windows_by_type(config, types),
                **attention_heads(config, 256),
            )
        )


class Gemma3Config(Gemma3TextConfig):
    """The text of a model that sees, from the `text_config` of its `config.json` (`model_type` `gemma3`)."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Gemma3TextConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        if not isinstance(config.get("text_config"), Mapping):
            raise ConfigError(f"config of gemma3: text_config must be a dictionary, got {config.get('text_config')!r}")
        text = text_config(config)
        require(text, "model_type", "gemma3_text", ["gemma3_text"])
        # transformers caps the logits of the text alone only.
        require(text, "final_logit_softcapping", None, [None])
        return super().from_hf({**BESIDE_A_TOWER, **text})


def _check_ropes(config: Mapping[str, Any]) -> None:
    """Refuse spellings of which transformers drops a part."""
    new = config.get("rope_parameters")
    if new and not any(kind in new for kind in LAYER_TYPES):
        raise UnsupportedError(
            f"gemma3: rope_parameters must be given per layer type; choices: {', '.join(LAYER_TYPES)}"
        )
    if new and config.get("rope_scaling"):
        raise UnsupportedError("gemma3: rope_scaling beside rope_parameters is not supported; give one of them")
