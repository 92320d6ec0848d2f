"""Ministral configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunnion_models.fields import layer_types, num_layers, windows_by_type
from trunnion_models.ministral3.config import Ministral3Config
from trunnion_models.mistral.config import DEFAULTS

LAYER_TYPES = ("full_attention", "sliding_attention")


class MinistralConfig(Ministral3Config):
    """As Mistral, with windows by layer type, by default in all layers; queries do not grow."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Ministral3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        config = {**DEFAULTS, "rms_norm_eps": 1e-6, **config}
        default = [LAYER_TYPES[config["sliding_window"] is not None]] * num_layers(config)
        types = layer_types(config, default, LAYER_TYPES)
        return cls.with_windows(config, windows_by_type(config, types))
