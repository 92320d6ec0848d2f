"""SmolLM3 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import (
    attention_heads,
    integer,
    layer_types,
    num_layers,
    read_fields,
    require,
    window_by_layer,
)

LAYER_TYPES = ("full_attention", "sliding_attention")


@dataclass(frozen=True, kw_only=True)
class SmolLM3Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    rotates: tuple[bool, ...]
    """Per layer, `no_rope_layers` in HF, where a 1 means that the layer has a rope."""
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> SmolLM3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 32768, "num_key_value_heads": 4, **config}
        rotates = _rotates(config)
        return cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config, default_theta=2e6),
                rotates=rotates,
                windows=_windows(config, rotates),
                **attention_heads(config),
            )
        )


def _rotates(config: Mapping[str, Any]) -> tuple[bool, ...]:
    """As `no_rope_layers` says, or all layers but each `no_rope_layer_interval`-th."""
    count, given = num_layers(config), config.get("no_rope_layers")
    if given is None:
        interval = integer(config, "no_rope_layer_interval", 4)
        return tuple((index + 1) % interval != 0 for index in range(count))
    if len(given) < count or not set(given) <= {0, 1}:
        raise ConfigError(f"config of smollm3: no_rope_layers must be 0 or 1 for each of {count} layers, got {given!r}")
    return tuple(map(bool, given[:count]))


def _windows(config: Mapping[str, Any], rotates: tuple[bool, ...]) -> tuple[int | None, ...]:
    """If `use_sliding_window` is set, where `layer_types` says, or in all layers without a rope."""
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    default = [LAYER_TYPES[window is not None and not has_rope] for has_rope in rotates]
    types = layer_types(config, default, LAYER_TYPES)
    if window is None and "sliding_attention" in types:
        # transformers' own kernels disagree about the window then.
        raise UnsupportedError("smollm3: layers of type sliding_attention need use_sliding_window and a sliding_window")
    return window_by_layer(config, types, window)
