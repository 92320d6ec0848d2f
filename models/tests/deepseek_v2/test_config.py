"""DeepSeek-V2: routing that cannot be, and routing that is not implemented."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.deepseek_v2.config import DeepseekV2Config

BASE: dict[str, Any] = {
    "model_type": "deepseek_v2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_experts_per_tok": 9}, "num_experts_per_tok 9 is above n_routed_experts 8"),
        ({"topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 1}, "within 1 of 3 groups"),
        ({"topk_method": "group_limited_greedy", "n_group": 2, "topk_group": 3}, "within 3 of 2 groups"),
        ({"kv_lora_rank": None}, "'kv_lora_rank' is missing"),
    ],
    ids=["experts", "groups-uneven", "groups-too-many", "missing"],
)
def test_routing_that_cannot_be_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        DeepseekV2Config.from_hf(BASE | changes)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [{"scoring_func": "sigmoid"}, {"topk_method": "noaux_tc"}, {"norm_topk_prob": True}, {"moe_layer_freq": 2}],
    ids=lambda changes: next(iter(changes)),
)
def test_other_routing_is_refused_by_name(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=next(iter(changes))):
        DeepseekV2Config.from_hf(BASE | changes)
