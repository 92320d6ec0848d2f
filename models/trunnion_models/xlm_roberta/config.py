"""XLM-RoBERTa configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trunnion_models.bert.config import BertConfig, read_encoder_fields
from trunnion_models.fields import integer


class XLMRobertaConfig(BertConfig):
    """As BERT; positions count from the padding token's id + 1."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> BertConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        return cls(**read_encoder_fields(cls, config, position_offset=_position_offset(config)))


def max_positions(config: Mapping[str, Any]) -> int | None:
    """Longest request in tokens: the rows of the table of positions behind the padding token's; None if not given."""
    if config.get("max_position_embeddings") is None:
        return None
    return integer(config, "max_position_embeddings", 0) - _position_offset(config)


def _position_offset(config: Mapping[str, Any]) -> int:
    return 1 + integer(config, "pad_token_id", 1, zero_allowed=True)
