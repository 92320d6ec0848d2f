"""Granite-MoE: what its configuration leaves out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.granitemoe.config import GraniteMoeConfig

BASE: dict[str, Any] = {
    "model_type": "granitemoe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


def test_defaults_are_those_of_the_family() -> None:
    config = GraniteMoeConfig.from_hf(BASE)
    assert (config.head_dim, config.num_key_value_heads) == (16, 4)
    assert (config.num_local_experts, config.num_experts_per_tok) == (8, 2)
    multipliers = (config.embedding_multiplier, config.attention_multiplier, config.residual_multiplier)
    assert multipliers == (1.0, 1.0, 1.0) and config.logits_scaling == 1.0
    assert config.rope.rope_theta == 10000.0 and config.max_position_embeddings == 2048
    assert config.rms_norm_eps == 1e-6
    assert not config.tie_word_embeddings and not config.attention_bias


def test_whole_numbers_are_multipliers_too() -> None:
    assert GraniteMoeConfig.from_hf(BASE | {"embedding_multiplier": 12}).embedding_multiplier == 12.0


def test_more_experts_per_token_than_experts_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok 9 is above num_local_experts 8"):
        GraniteMoeConfig.from_hf(BASE | {"num_experts_per_tok": 9})


def test_another_activation_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match="hidden_act 'gelu'"):
        GraniteMoeConfig.from_hf(BASE | {"hidden_act": "gelu"})
