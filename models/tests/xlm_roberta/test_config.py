"""What a published `config.json` of XLM-RoBERTa means, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion import registry
from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.xlm_roberta.config import XLMRobertaConfig

GOOD: dict[str, Any] = {"model_type": "xlm-roberta"}


def test_what_is_left_out_has_the_reference_defaults() -> None:
    config = XLMRobertaConfig.from_hf(GOOD)
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (30522, 768, 12)
    assert (config.max_model_len, config.head_dim, config.position_offset) == (510, 64, 2)
    assert XLMRobertaConfig.from_hf({**GOOD, "max_position_embeddings": 514}).max_model_len == 512
    assert XLMRobertaConfig.from_hf({**GOOD, "pad_token_id": 3}).position_offset == 4


def test_the_longest_text_is_the_family_s_to_say() -> None:
    given = {**GOOD, "architectures": ["XLMRobertaModel"], "max_position_embeddings": 514}
    assert registry.max_positions(given) == 512
    assert registry.max_positions({**given, "pad_token_id": 3}) == 510
    assert registry.max_positions({**GOOD, "architectures": ["XLMRobertaModel"]}) is None
    with pytest.raises(ConfigError, match="pad_token_id must be"):
        registry.max_positions({**given, "pad_token_id": "three"})
    assert registry.max_positions({**given, "architectures": ["BertModel"]}) == 514


@pytest.mark.parametrize(
    ("changes", "expected"), [({"id2label": {"0": "score"}}, 1), ({"num_labels": 3}, 3), ({"id2label": {}}, 2)]
)
def test_labels_are_counted_as_transformers_counts_them(changes: dict[str, Any], expected: int) -> None:
    assert XLMRobertaConfig.from_hf(GOOD | changes).num_labels == expected


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
        XLMRobertaConfig.from_hf(GOOD | changes)


def test_heads_must_divide() -> None:
    with pytest.raises(ConfigError, match="hidden_size 770 is not a multiple of num_attention_heads 12"):
        XLMRobertaConfig.from_hf(GOOD | {"hidden_size": 770})
