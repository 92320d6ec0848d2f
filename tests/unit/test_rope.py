"""Every rope against the cos and sin of transformers, in each spelling a config may use."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import DeepseekV3Config, Gemma3TextConfig, LlamaConfig, Phi3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import yarn_apply_mscale
from transformers.models.gemma3.modeling_gemma3 import Gemma3RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from trunnion.errors import ConfigError, UnsupportedError
from trunnion.rope import (
    RopeParameters,
    cos_sin_table,
    inv_freq_and_scale,
    read_rope,
    read_rope_of_text,
    yarn_softmax_scale_multiplier,
)

PUBLISHED = json.loads((Path(__file__).parent / "data" / "published_ropes.json").read_text())
HEAD_DIM = 32
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}
LONG = {
    "short_factor": [1.0 + 0.01 * i for i in range(HEAD_DIM // 2)],
    "long_factor": [1.0 + 0.5 * i for i in range(HEAD_DIM // 2)],
}

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "default-type": {"rope_scaling": {"type": "default"}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dynamic": {"rope_scaling": {"type": "dynamic", "factor": 4.0}},
    "llama3": {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    "yarn": {"rope_scaling": {"rope_type": "yarn", **YARN}},
    "yarn-no-truncate": {"rope_scaling": {"rope_type": "yarn", "truncate": False, **YARN}},
    "yarn-betas": {"rope_scaling": {"rope_type": "yarn", "beta_fast": 8.0, "beta_slow": 2.0, **YARN}},
    "yarn-mscale-both-one": {"rope_scaling": {"type": "yarn", "mscale": 1.0, "mscale_all_dim": 1.0, **YARN}},
    "yarn-mscale-differ": {"rope_scaling": {"type": "yarn", "mscale": 0.7, "mscale_all_dim": 1.1, **YARN}},
    "yarn-mscale-alone": {"rope_scaling": {"type": "yarn", "mscale": 0.7, **YARN}},
    "yarn-attention-factor": {"rope_scaling": {"rope_type": "yarn", "attention_factor": 1.3, **YARN}},
    "yarn-null-factor": {"rope_scaling": {"rope_type": "yarn", **YARN, "factor": None}},
    "new-flat": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
    "theta-integer": {"rope_theta": 1000000},
    "original-length-at-top": {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        "original_max_position_embeddings": 128,
    },
}


def raw_config(**overrides: Any) -> dict[str, Any]:
    """A `config.json` of small sizes; each call has its own nested dicts, since transformers edits them."""
    base = {
        "hidden_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 6,
        "vocab_size": 32,
        "max_position_embeddings": 256,
    }
    return json.loads(json.dumps({**base, **overrides}))


def expected(module: torch.nn.Module, length: int, *args: str) -> tuple[torch.Tensor, torch.Tensor]:
    cos, sin = module(torch.zeros(1), torch.arange(length)[None], *args)
    half = cos.shape[-1] // 2
    return cos[0, :, :half], sin[0, :, :half]


def assert_table(rope: RopeParameters, truth: tuple[torch.Tensor, torch.Tensor], length: int) -> None:
    rotary_dim = rope.rotary_dim(HEAD_DIM)
    table = cos_sin_table(rope, rotary_dim, length)
    assert table.dtype == torch.float32 and table.shape == (length, rotary_dim)
    torch.testing.assert_close(table, torch.cat(truth, dim=-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [1, 63, 256])
def test_table_equals_transformers(name: str, length: int) -> None:
    rope = read_rope(raw_config(**CASES[name]))
    truth = expected(LlamaRotaryEmbedding(LlamaConfig(**raw_config(**CASES[name]))), length)
    assert_table(rope, truth, length)


def test_dynamic_ntk_beyond_the_trained_length_equals_transformers_at_that_length() -> None:
    settings = CASES["dynamic"]
    truth = expected(LlamaRotaryEmbedding(LlamaConfig(**raw_config(**settings))), 1000)
    assert_table(read_rope(raw_config(**settings)), truth, 1000)
    short = inv_freq_and_scale(read_rope(raw_config(**settings)), HEAD_DIM, 256)[0]
    assert not torch.equal(short, inv_freq_and_scale(read_rope(raw_config(**settings)), HEAD_DIM, 1000)[0])


@pytest.mark.parametrize("length", [64, 65, 200])
@pytest.mark.parametrize("name", ["longrope", "su"])
def test_longrope_takes_short_or_long_factors_by_the_longest_request(length: int, name: str) -> None:
    def raw(rope_type: str) -> dict[str, Any]:
        return raw_config(rope_scaling={"type": rope_type, **LONG}, original_max_position_embeddings=64)

    truth = expected(Phi3RotaryEmbedding(Phi3Config(**raw("longrope"), pad_token_id=0)), length)
    assert_table(read_rope(raw(name)), truth, length)


@pytest.mark.parametrize("place", ["top", "rope_parameters"])
def test_partial_rotary_factor_in_either_place(place: str) -> None:
    settings: dict[str, Any] = {"rope_theta": 5e4, "partial_rotary_factor": 0.5}
    raw = raw_config(**settings) if place == "top" else raw_config(rope_parameters={"rope_type": "default", **settings})
    rope = read_rope(raw, takes_partial=True)
    assert rope.rotary_dim(HEAD_DIM) == 16
    # Phi-3 is the family whose rotary module honours the factor for the default type.
    assert_table(rope, expected(Phi3RotaryEmbedding(Phi3Config(**raw, pad_token_id=0)), 63), 63)


def test_a_family_that_rotates_whole_heads_refuses_a_part() -> None:
    raw = raw_config(partial_rotary_factor=0.5)
    with pytest.raises(UnsupportedError, match=r"partial_rotary_factor 0\.5 is not supported.*choices: 1\.0"):
        read_rope(raw)
    assert read_rope(raw_config(partial_rotary_factor=1.0)).rotary_dim(HEAD_DIM) == HEAD_DIM


GEMMA_SPELLINGS: dict[str, dict[str, Any]] = {
    "old": {"rope_theta": 1000000, "rope_local_base_freq": 10000},
    "old-scaled": {
        "rope_theta": 1000000,
        "rope_local_base_freq": 10000,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "new": {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000},
        }
    },
}


@pytest.mark.parametrize("layer_type", ["full_attention", "sliding_attention"])
@pytest.mark.parametrize("name", GEMMA_SPELLINGS)
def test_rope_per_layer_type(name: str, layer_type: str) -> None:
    raw = raw_config(**GEMMA_SPELLINGS[name], head_dim=HEAD_DIM, num_key_value_heads=1)
    truth = expected(Gemma3RotaryEmbedding(Gemma3TextConfig(**raw_config(**raw))), 63, layer_type)
    assert_table(read_rope(raw, layer_type), truth, 63)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_resolve_as_transformers_does(name: str) -> None:
    case = PUBLISHED[name]
    for layer_type, resolved in case["expected"].items():
        rope = read_rope(case["config"], layer_type or None, takes_partial=True)
        for field, value in resolved.items():
            if field == "type":
                continue
            read = getattr(rope, field)
            assert read == (tuple(value) if isinstance(value, list) else value), f"{name} {layer_type} {field}"


@pytest.mark.parametrize("scaling", [CASES["yarn-mscale-both-one"], CASES["yarn-mscale-differ"], CASES["yarn"], {}])
def test_deepseek_softmax_scale(scaling: dict[str, Any]) -> None:
    config = DeepseekV3Config(**raw_config(**scaling))
    truth = yarn_apply_mscale(config.rope_parameters, 1.0)
    assert yarn_softmax_scale_multiplier(read_rope(raw_config(**scaling))) == pytest.approx(truth)


def test_yarn_amplitude_is_one_when_both_mscales_are_one() -> None:
    rope = read_rope(raw_config(rope_scaling={"type": "yarn", "factor": 16, "mscale": 1, "mscale_all_dim": 1}))
    assert inv_freq_and_scale(rope, HEAD_DIM)[1] == 1.0
    alone = read_rope(raw_config(rope_scaling={"type": "yarn", "factor": 16}))
    assert inv_freq_and_scale(alone, HEAD_DIM)[1] == pytest.approx(0.1 * math.log(16) + 1)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "unknown-type": ({"rope_scaling": {"type": "xdrope"}}, UnsupportedError, "unsupported rope type 'xdrope'"),
    "mrope": ({"rope_scaling": {"type": "mrope", "mrope_section": [1]}}, UnsupportedError, "'mrope'"),
    "mrope-section": ({"rope_scaling": {"mrope_section": [16, 24, 24]}}, UnsupportedError, "'mrope_section'"),
    "no-factor": ({"rope_scaling": {"type": "linear"}}, ConfigError, "needs 'factor'"),
    "no-low": ({"rope_scaling": {"type": "llama3", "factor": 2.0}}, ConfigError, "needs 'low_freq_factor'"),
    "no-long": ({"rope_scaling": {"type": "longrope"}}, ConfigError, "needs 'short_factor'"),
    "text-factor": ({"rope_scaling": {"type": "linear", "factor": "4"}}, ConfigError, "factor must be"),
    "negative-theta": ({"rope_theta": -1.0}, ConfigError, "rope_theta must be"),
    "not-a-dict": ({"rope_scaling": "yarn"}, ConfigError, "must be a dictionary"),
    "no-length": ({"max_position_embeddings": None}, ConfigError, "max_position_embeddings must be"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_by_name(name: str) -> None:
    settings, error, text = REFUSED[name]
    with pytest.raises(error, match=text) as caught:
        read_rope(raw_config(**settings))
    assert "\n" not in str(caught.value)


SECTIONS = {"mrope_section": [8, 4, 4], "mrope_interleaved": True}


@pytest.mark.parametrize("name", ["default", "yarn", "new-flat"])
def test_of_text_alone_sections_do_not_matter(name: str) -> None:
    settings = CASES[name]
    key = "rope_parameters" if "rope_parameters" in settings else "rope_scaling"
    with_sections = settings | {key: settings.get(key, {}) | SECTIONS}
    assert read_rope_of_text(raw_config(**with_sections)) == read_rope(raw_config(**settings))


def test_of_text_alone_the_type_mrope_is_the_default_one() -> None:
    given = raw_config(rope_scaling={"type": "mrope", **SECTIONS})
    assert read_rope_of_text(given) == read_rope(raw_config())


def test_layer_type_that_the_config_does_not_name() -> None:
    with pytest.raises(ConfigError, match="choices: full_attention, sliding_attention"):
        read_rope(raw_config(**GEMMA_SPELLINGS["new"]))


def test_odd_rotary_size_and_wrong_factor_count_are_refused() -> None:
    with pytest.raises(ConfigError, match="rotates 3 of 32"):
        read_rope(raw_config(partial_rotary_factor=0.1), takes_partial=True).rotary_dim(HEAD_DIM)
    rope = read_rope(raw_config(rope_scaling={"type": "longrope", **LONG}))
    with pytest.raises(ConfigError, match="16 values; 8 are needed"):
        inv_freq_and_scale(rope, 16, 10)


def test_table_is_real_under_the_meta_device() -> None:
    with torch.device("meta"):
        table = cos_sin_table(read_rope(raw_config()), HEAD_DIM, 3)
    assert table.device.type == "cpu"
