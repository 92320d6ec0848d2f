"""Qwen2.5-VL configurations in both spellings against transformers, and what is refused by name."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from transformers import AutoConfig

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.qwen2_5_vl.card import CARDS
from trunnion_models.qwen2_5_vl.config import Qwen2_5_VLConfig

FLAT: dict[str, Any] = dict(next(card for card in CARDS if card.quick).config)
NESTED: dict[str, Any] = dict(next(card for card in CARDS if card.name.endswith("nested")).config)
PUBLISHED_7B: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_act": "silu",
    "hidden_size": 3584,
    "image_token_id": 151655,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 152064,
}
"""What Qwen2.5-VL-7B-Instruct publishes."""
SPELLINGS = {"flat": FLAT, "nested": NESTED, "published-7b": PUBLISHED_7B}


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**copy.deepcopy(config), **changes}


@pytest.mark.parametrize("name", SPELLINGS)
def test_fields_are_those_of_transformers(name: str) -> None:
    settings = copy.deepcopy(SPELLINGS[name])
    expected = AutoConfig.for_model(settings.pop("model_type"), **settings)
    got = Qwen2_5_VLConfig.from_hf(SPELLINGS[name])
    text, vision = expected.text_config, expected.vision_config
    for field in ("vocab_size", "hidden_size", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps"):
        assert getattr(got, field) == getattr(text, field), field
    assert got.max_position_embeddings == text.max_position_embeddings
    assert got.rope.rope_theta == text.rope_parameters["rope_theta"]
    assert list(got.rope.mrope_section) == text.rope_parameters["mrope_section"]
    assert got.windows == (None,) * got.num_hidden_layers
    for field in ("depth", "hidden_size", "intermediate_size", "num_heads", "in_channels", "patch_size", "window_size"):
        assert getattr(got.vision, field) == getattr(vision, field), field
    assert got.vision.fullatt_block_indexes == tuple(vision.fullatt_block_indexes)
    assert got.vision.rope_theta == vision.rope_parameters.get("rope_theta", 10000.0)


FLAGS = (None, False, True)


@pytest.mark.parametrize(
    ("spelling", "outer", "inner"),
    [
        *(("flat", outer, None) for outer in FLAGS),
        *(("nested", outer, inner) for outer in FLAGS for inner in FLAGS),
    ],
)
def test_the_tie_flag_is_the_one_transformers_takes(spelling: str, outer: bool | None, inner: bool | None) -> None:
    config = copy.deepcopy(SPELLINGS[spelling])
    if outer is not None:
        config["tie_word_embeddings"] = outer
    if inner is not None:
        config["text_config"]["tie_word_embeddings"] = inner
    settings = copy.deepcopy(config)
    expected = AutoConfig.for_model(settings.pop("model_type"), **settings)
    assert Qwen2_5_VLConfig.from_hf(config).tie_word_embeddings == expected.tie_word_embeddings


def test_what_may_be_left_out_has_the_reference_defaults() -> None:
    config = {key: value for key, value in FLAT.items() if key not in ("rms_norm_eps", "rope_theta", "rope_scaling")}
    settings = copy.deepcopy(config) | {"hidden_size": 512, "head_dim": 128}
    settings["vision_config"]["out_hidden_size"] = 512
    got = Qwen2_5_VLConfig.from_hf(settings)
    text = AutoConfig.for_model(settings.pop("model_type"), **settings).text_config
    assert got.rms_norm_eps == text.rms_norm_eps and got.rope.rope_theta == text.rope_parameters["rope_theta"]
    assert got.rope.mrope_section == (16, 24, 24)


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no-vision": (changed(FLAT, vision_config=None), ConfigError, "vision_config must be a dictionary, got None"),
    "sections": (
        changed(FLAT, rope_scaling={"type": "mrope", "mrope_section": [2, 2, 2]}),
        ConfigError,
        r"mrope_section \[2, 2, 2\] does not add up to half of head_dim 16",
    ),
    "section-of-two": (
        changed(FLAT, rope_scaling={"type": "mrope", "mrope_section": [4, 4]}),
        ConfigError,
        r"mrope_section \[4, 4\] does not name time, height and width in turn",
    ),
    "interleaved": (
        changed(FLAT, rope_scaling={"mrope_section": [2, 3, 3], "mrope_interleaved": True}),
        UnsupportedError,
        "mrope_interleaved",
    ),
    "widths": (
        changed(FLAT, vision_config={**FLAT["vision_config"], "out_hidden_size": 32}),
        ConfigError,
        "out_hidden_size 32 is not the text's hidden_size 64",
    ),
    "heads": (
        changed(FLAT, vision_config={**FLAT["vision_config"], "num_heads": 16}),
        ConfigError,
        "hidden_size 32 is not a multiple of 4 x num_heads 16",
    ),
    "window": (
        changed(FLAT, vision_config={**FLAT["vision_config"], "window_size": 7}),
        ConfigError,
        "window_size 7 is below one merged patch, 8",
    ),
    "activation": (
        changed(FLAT, vision_config={**FLAT["vision_config"], "hidden_act": "gelu"}),
        UnsupportedError,
        "hidden_act 'gelu' is not supported",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_value_is_named(name: str) -> None:
    config, error, words = BAD[name]
    with pytest.raises(error, match=words) as caught:
        Qwen2_5_VLConfig.from_hf(config)
    assert "\n" not in str(caught.value)
