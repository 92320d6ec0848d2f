"""XLM-RoBERTa configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunnion_models.bert.config import BertConfig, read_encoder_fields


class XLMRobertaConfig(BertConfig):
    """As BERT; positions count from the padding token's id + 1."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> BertConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        padding = config.get("pad_token_id")
        return cls(**read_encoder_fields(cls, config, position_offset=1 + (1 if padding is None else padding)))
