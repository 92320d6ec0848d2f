"""Mistral 3 configuration: the `text_config` of the published `config.json`, Mistral's or Ministral 3's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunnion.errors import ConfigError
from trunnion.hf_config import text_config
from trunnion_models.fields import require
from trunnion_models.ministral3.config import Ministral3Config
from trunnion_models.mistral.config import DEFAULTS


class Mistral3Config(Ministral3Config):
    """The text's. Its head is tied if `text_config` says so, or the outer config where that says nothing."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Ministral3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        if not isinstance(config.get("text_config"), Mapping):
            raise ConfigError(
                f"config of mistral3: text_config must be a dictionary, got {config.get('text_config')!r}"
            )
        text = text_config(config)
        require(text, "model_type", "mistral", ["mistral", "ministral3"])
        if text.get("model_type") == "ministral3":
            return super().from_hf(text)
        return cls.with_one_window({**DEFAULTS, "rms_norm_eps": 1e-6, **text}, query_scaling=None)
