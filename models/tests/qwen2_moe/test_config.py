"""Qwen2-MoE: what its configuration leaves out, which layers have windows, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.qwen2_moe.config import Qwen2MoeConfig

BASE: dict[str, Any] = {
    "model_type": "qwen2_moe",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
}


def test_defaults_are_those_of_the_family() -> None:
    config = Qwen2MoeConfig.from_hf(BASE)
    assert (config.head_dim, config.num_key_value_heads) == (4, 16)
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (60, 4, 1408)
    assert config.shared_expert_intermediate_size == 5632
    assert not config.norm_topk_prob and not config.tie_word_embeddings
    assert config.rope.rope_theta == 10000.0 and config.max_position_embeddings == 32768
    assert config.windows == (None,) * 6


@pytest.mark.parametrize(
    ("changes", "windowed"),
    [
        ({"use_sliding_window": True, "max_window_layers": 3}, [0, 2]),
        ({"use_sliding_window": True}, [0, 2, 4]),
        ({"use_sliding_window": False, "max_window_layers": 3}, []),
        (
            {"use_sliding_window": True, "layer_types": ["full_attention"] * 5 + ["sliding_attention"]},
            [5],
        ),
    ],
    ids=["below-a-bound", "everywhere", "off", "by-type"],
)
def test_windows_are_on_every_second_layer(changes: dict[str, Any], windowed: list[int]) -> None:
    windows = Qwen2MoeConfig.from_hf(BASE | {"sliding_window": 9} | changes).windows
    assert [index for index, window in enumerate(windows) if window == 9] == windowed


def test_sparse_layers_skip_the_dense_ones() -> None:
    config = Qwen2MoeConfig.from_hf(BASE | {"mlp_only_layers": [3], "decoder_sparse_step": 2})
    assert [index for index in range(6) if config.is_sparse(index)] == [1, 5]


def test_more_experts_per_token_than_experts_is_named() -> None:
    with pytest.raises(ConfigError, match="num_experts_per_tok 4 is above num_experts 3"):
        Qwen2MoeConfig.from_hf(BASE | {"num_experts": 3})


@pytest.mark.parametrize(
    "changes", [{"hidden_act": "gelu"}, {"qkv_bias": False}], ids=lambda changes: next(iter(changes))
)
def test_what_is_not_done_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        Qwen2MoeConfig.from_hf(BASE | changes)
