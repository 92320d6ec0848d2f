"""Qwen3.5-MoE: its fields against transformers, alone, beside a tower and as a text under the tower's name."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
from transformers import AutoConfig

from trunnion import registry
from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.qwen3_5_moe.config import Qwen3_5MoeConfig

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "vocab_size": 131,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FEWER = {"num_experts": 128, "num_experts_per_tok": 4, "moe_intermediate_size": 24, "mlp_only_layers": []}
NOT_THERE = {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"}
"""Fields that transformers does not read."""


@pytest.mark.parametrize("changes", [{}, FEWER], ids=["defaults", "fewer"])
def test_fields_are_those_of_transformers(changes: dict[str, Any]) -> None:
    settings = copy.deepcopy(TEXT | changes)
    expected = AutoConfig.for_model(settings.pop("model_type"), **settings)
    got = Qwen3_5MoeConfig.from_hf(TEXT | changes)
    for field in {field.name for field in dataclasses.fields(got)} - {"rope", "layer_types"} - NOT_THERE:
        assert getattr(got, field) == getattr(expected, field), field
    assert all(got.is_sparse(index) for index in range(got.num_hidden_layers))


def test_a_text_may_stand_under_the_name_of_the_model_with_a_tower() -> None:
    flat = TEXT | {"architectures": ["Qwen3_5MoeForConditionalGeneration"]}
    nested = {"model_type": "qwen3_5_moe", "text_config": TEXT, "architectures": flat["architectures"]}
    found = [registry.model_class(config).config_class.from_hf(config) for config in (flat, nested)]
    assert found[0] == found[1] == Qwen3_5MoeConfig.from_hf(TEXT)


@pytest.mark.parametrize(
    "settings",
    [{"norm_topk_prob": False}, {"mlp_only_layers": [1]}, {"decoder_sparse_step": 2}, {"attn_output_gate": False}],
    ids=str,
)
def test_what_transformers_would_not_read_is_refused(settings: dict[str, Any]) -> None:
    (name,) = settings
    with pytest.raises(UnsupportedError, match=rf"qwen3_5_moe_text: {name} .* is not supported; choices"):
        Qwen3_5MoeConfig.from_hf(TEXT | settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_experts": 4}, "num_experts_per_tok 8 is above num_experts 4"),
        ({"num_experts": 0}, "num_experts must be positive, got 0"),
        ({"model_type": "qwen3_5_moe"}, "text_config must be a dictionary, got None; without one, model_type must be"),
    ],
    ids=["too-few-experts", "no-experts", "no-text"],
)
def test_what_cannot_be_is_named(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Qwen3_5MoeConfig.from_hf(TEXT | settings)
