"""Mistral configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunnion.rope import read_rope
from trunnion_models.fields import attention_heads, layer_types, num_layers, read_fields, require
from trunnion_models.llama.config import LlamaConfig

DEFAULTS: dict[str, Any] = {"max_position_embeddings": 4096 * 32, "num_key_value_heads": 8, "sliding_window": 4096}
"""The window is 4096 where the key is absent, and none where it is null."""


class MistralConfig(LlamaConfig):
    """As Llama, without biases and with an optional window over all layers."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> MistralConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {**DEFAULTS, **config}
        kind = "full_attention" if config["sliding_window"] is None else "sliding_attention"
        # transformers passes over them, so that any other than these would change the result.
        layer_types(config, [kind] * num_layers(config), [kind])
        fixed = {"attention_bias": False, "mlp_bias": False}
        return cls(**read_fields(cls, config, rope=read_rope(config), **fixed, **attention_heads(config)))
