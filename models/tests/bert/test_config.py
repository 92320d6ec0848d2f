"""What a published `config.json` of BERT means, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.bert.config import BertConfig

GOOD: dict[str, Any] = {"model_type": "bert"}


def test_what_is_left_out_has_the_reference_defaults() -> None:
    config = BertConfig.from_hf(GOOD)
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (30522, 768, 12)
    assert (config.max_model_len, config.head_dim, config.position_offset) == (512, 64, 0)
    assert (config.type_vocab_size, config.layer_norm_eps, config.num_labels) == (2, 1e-12, 2)


@pytest.mark.parametrize(
    ("changes", "expected"), [({"id2label": {"0": "score"}}, 1), ({"num_labels": 3}, 3), ({"id2label": {}}, 2)]
)
def test_labels_are_counted_as_transformers_counts_them(changes: dict[str, Any], expected: int) -> None:
    assert BertConfig.from_hf(GOOD | changes).num_labels == expected


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported; choices: 'gelu'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key' is not supported"),
        ({"is_decoder": True}, "is_decoder True is not supported"),
    ],
)
def test_other_kinds_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        BertConfig.from_hf(GOOD | changes)


def test_heads_must_divide() -> None:
    with pytest.raises(ConfigError, match="hidden_size 770 is not a multiple of num_attention_heads 12"):
        BertConfig.from_hf(GOOD | {"hidden_size": 770})
