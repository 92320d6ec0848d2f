"""Qwen3.5: the text alone and beside a tower against transformers, whatever the spelling, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from trunnion.config import BuildContext
from trunnion.errors import ConfigError, UnsupportedError
from trunnion.reference import ReferenceHardware
from trunnion_models.qwen3_5.config import Qwen3_5Config
from trunnion_models.qwen3_5.mtp import Qwen3_5MTP

TEXT: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
ROPE = {"rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True, "mrope_section": [11, 11, 10]}
SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "rms_norm_eps",
    "attention_bias",
    "tie_word_embeddings",
)
SPELLINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "interval": {"full_attention_interval": 2},
    "layer-types": {"layer_types": ["linear_attention"] * 6 + ["full_attention"] * 2},
    "new-rope": {"rope_parameters": ROPE | {"partial_rotary_factor": 0.5}},
    "quarter-in-new-rope": {"rope_parameters": ROPE},
    "both-factors": {"partial_rotary_factor": 0.5, "rope_parameters": ROPE | {"partial_rotary_factor": 0.75}},
    "old-rope": {"rope_theta": 1e7, "partial_rotary_factor": 0.5, "rope_scaling": {"type": "default"}},
    "yarn": {"rope_parameters": ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}},
    "tied": {"tie_word_embeddings": True},
}


def nested(text: dict[str, Any], **outer: Any) -> dict[str, Any]:
    return {"model_type": "qwen3_5", "text_config": TEXT | text, "vision_config": {"depth": 1}, **outer}


@pytest.mark.parametrize("name", SPELLINGS)
def test_fields_are_those_of_transformers(name: str) -> None:
    config = TEXT | SPELLINGS[name]
    settings = copy.deepcopy(config)
    expected = AutoConfig.for_model(settings.pop("model_type"), **settings)
    got = Qwen3_5Config.from_hf(config)
    assert {field: getattr(got, field) for field in SAME} == {field: getattr(expected, field) for field in SAME}
    assert list(got.layer_types) == expected.layer_types
    rope = {key: value for key, value in expected.rope_parameters.items() if not key.startswith(("mrope", "type"))}
    assert {key: getattr(got.rope, key) for key in rope} == rope
    assert got.rope.mrope_section == ()


def test_the_text_beside_a_tower_is_read_as_it_is_alone() -> None:
    for changes in SPELLINGS.values():
        assert vars(Qwen3_5Config.from_hf(nested(changes))) == vars(Qwen3_5Config.from_hf(TEXT | changes))


@pytest.mark.parametrize(
    ("inner", "outer", "tied"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
    ids=["outer", "outer-off", "inner-on", "inner-off"],
)
def test_the_text_has_the_last_word_on_its_head(inner: bool | None, outer: bool, tied: bool) -> None:
    text = {} if inner is None else {"tie_word_embeddings": inner}
    assert Qwen3_5Config.from_hf(nested(text, tie_word_embeddings=outer)).tie_word_embeddings is tied


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no-text": ({"model_type": "qwen3_5"}, ConfigError, "text_config must be a dictionary, got None; without one, mod"),
    "other-text": (nested({"model_type": "qwen3_5_moe_text"}), UnsupportedError, "model_type 'qwen3_5_moe_text' is"),
    "activation": (TEXT | {"hidden_act": "gelu"}, UnsupportedError, "hidden_act 'gelu' is not supported"),
    "no-gate": (TEXT | {"attn_output_gate": False}, UnsupportedError, "attn_output_gate False is not supported"),
    "layer-type": (TEXT | {"layer_types": ["mamba"] * 8}, UnsupportedError, "layer type 'mamba' is not supported"),
    "interval": (TEXT | {"full_attention_interval": 0}, ConfigError, "full_attention_interval must be positive, got 0"),
    "rope": (TEXT | {"rope_parameters": {"rope_type": "xdrope"}}, UnsupportedError, "unsupported rope type 'xdrope'"),
    "alpha": (TEXT | {"rope_parameters": ROPE | {"alpha": 2.0}}, UnsupportedError, "unsupported rope setting 'alpha'"),
    "no-mlp": ({**TEXT, "intermediate_size": None}, ConfigError, "required field 'intermediate_size' is missing"),
}


def test_a_checkpoint_may_have_no_head_that_drafts() -> None:
    config = Qwen3_5Config.from_hf(TEXT | {"mtp_num_hidden_layers": 0})
    assert config.mtp_num_hidden_layers == 0
    assert Qwen3_5Config.from_hf(TEXT).mtp_num_hidden_layers == 1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mtp_num_hidden_layers": 0}, "Qwen3_5MTP: mtp_num_hidden_layers 0 is not supported; choices: 1"),
        ({"mtp_num_hidden_layers": 2}, "Qwen3_5MTP: mtp_num_hidden_layers 2 is not supported; choices: 1"),
        ({"mtp_use_dedicated_embeddings": True}, "mtp_use_dedicated_embeddings True is not supported; choices: False"),
    ],
    ids=["none", "two", "own-embeddings"],
)
def test_another_head_than_one_layer_on_shared_embeddings_is_refused(settings: dict[str, Any], text: str) -> None:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, max_model_len=16)
    with torch.device("meta"), pytest.raises(UnsupportedError, match=text):
        Qwen3_5MTP(Qwen3_5Config.from_hf(TEXT | settings), ctx)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_run_is_named(name: str) -> None:
    config, error, text = BAD[name]
    with pytest.raises(error, match=text):
        Qwen3_5Config.from_hf(config)
