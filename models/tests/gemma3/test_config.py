"""Gemma 3: what its configuration leaves out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import UnsupportedError
from trunnion_models.gemma3.config import Gemma3TextConfig

BASE: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_defaults_are_those_of_the_family() -> None:
    config = Gemma3TextConfig.from_hf(BASE)
    assert config.tie_word_embeddings
    assert (config.head_dim, config.query_pre_attn_scalar) == (256, 256)
    assert config.windows == (4096, 4096, 4096, 4096, 4096, None, 4096)
    assert config.ropes["sliding_attention"].rope_theta == 10000.0
    assert config.ropes["full_attention"].rope_theta == 1000000.0


def test_a_scaled_rope_is_that_of_the_full_layers_only() -> None:
    config = Gemma3TextConfig.from_hf(BASE | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}})
    assert config.ropes["full_attention"].factor == 8.0
    assert config.ropes["sliding_attention"].rope_type == "default"


@pytest.mark.parametrize(
    "changes",
    [{"use_bidirectional_attention": True}, {"attn_logit_softcapping": 50.0}, {"hidden_activation": "silu"}],
    ids=lambda changes: next(iter(changes)),
)
def test_what_would_change_the_result_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        Gemma3TextConfig.from_hf(BASE | changes)
