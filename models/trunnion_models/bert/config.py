"""BERT configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion_models.fields import attention_heads, read_fields, require


@dataclass(frozen=True, kw_only=True)
class BertConfig:
    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    num_labels: int = 2
    """Scores of a classifier."""
    position_offset: int = 0
    """Row of the table of positions that belongs to a request's first token."""
    tie_word_embeddings: bool = True

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.max_position_embeddings - self.position_offset

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> BertConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        return cls(**read_encoder_fields(cls, config))


def read_encoder_fields(cls: type[BertConfig], config: Mapping[str, Any], **derived: Any) -> dict[str, Any]:
    """What BERT and RoBERTa say alike."""
    require(config, "hidden_act", "gelu", ["gelu"])
    require(config, "position_embedding_type", "absolute", ["absolute"])
    require(config, "is_decoder", False, [False])
    require(config, "add_cross_attention", False, [False])
    fields = read_fields(cls, config, num_labels=_num_labels(config), **derived)
    attention_heads({**{name: getattr(cls, name) for name in ("hidden_size", "num_attention_heads")}, **fields})
    return fields


def _num_labels(config: Mapping[str, Any]) -> int:
    """As transformers: the labels that are named, or two."""
    named = config.get("id2label")
    return len(named) if named else int(config.get("num_labels") or 2)
