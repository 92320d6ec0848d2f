"""Qwen3-Next: which layers are linear, which are sparse, and how much of a head is rotated."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError
from trunnion_models.qwen3_next.config import Qwen3NextConfig

BASE: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(("changes", "full"), [({}, [3]), ({"full_attention_interval": 2}, [1, 3, 5])], ids=str)
def test_every_nth_layer_is_full_attention(changes: dict[str, Any], full: list[int]) -> None:
    types = Qwen3NextConfig.from_hf(BASE | changes).layer_types
    assert [index for index, kind in enumerate(types) if kind == "full_attention"] == full


def test_sparse_layers_skip_the_dense_ones() -> None:
    config = Qwen3NextConfig.from_hf(BASE | {"mlp_only_layers": [3], "decoder_sparse_step": 2})
    assert [index for index in range(6) if config.is_sparse(index)] == [1, 5]


def test_a_quarter_of_a_head_is_rotated_unless_the_config_says_otherwise() -> None:
    assert Qwen3NextConfig.from_hf(BASE).rope.rotary_dim(256) == 64
    assert Qwen3NextConfig.from_hf(BASE | {"partial_rotary_factor": 0.5}).rope.rotary_dim(256) == 128


def test_more_experts_per_token_than_experts_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok 10 is above num_experts 8"):
        Qwen3NextConfig.from_hf(BASE | {"num_experts": 8})
