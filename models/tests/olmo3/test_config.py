"""OLMo 3: windows by layer, a rope for each layer type, and what is refused because releases disagree about it."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.olmo3.config import Olmo3Config

BASE: dict[str, Any] = {
    "model_type": "olmo3",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
FULL, SLIDING = "full_attention", "sliding_attention"


def test_defaults_are_those_of_the_family() -> None:
    config = Olmo3Config.from_hf(BASE)
    assert config.windows == (4096, 4096, 4096, None, 4096)
    assert {kind: rope.rope_theta for kind, rope in config.ropes.items()} == {FULL: 500000.0, SLIDING: 500000.0}
    assert (config.rms_norm_eps, config.max_model_len, config.head_dim) == (1e-5, 2048, 16)
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": YARN, "rope_theta": 500000},
        {"rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}},
        {"rope_parameters": {FULL: YARN, SLIDING: {"rope_type": "default", "rope_theta": 500000.0}}},
        {"rope_parameters": {FULL: YARN}},
        {"rope_parameters": {SLIDING: {"rope_theta": 500000.0}}, "rope_scaling": YARN},
    ],
    ids=["published", "older", "newer", "newer-without-sliding", "both"],
)
def test_a_stretched_rope_is_that_of_the_full_layers_only(changes: dict[str, Any]) -> None:
    ropes = Olmo3Config.from_hf(BASE | changes).ropes
    assert (ropes[FULL].rope_type, ropes[FULL].factor, ropes[FULL].rope_theta) == ("yarn", 8.0, 500000.0)
    assert (ropes[SLIDING].rope_type, ropes[SLIDING].factor, ropes[SLIDING].rope_theta) == ("default", None, 500000.0)


def test_layers_of_one_type_have_one_rope() -> None:
    config = Olmo3Config.from_hf(BASE | {"layer_types": [FULL] * 5, "sliding_window": None, "rope_scaling": YARN})
    assert (config.windows, list(config.ropes)) == ((None,) * 5, [FULL])
    assert config.max_model_len == 65536


def test_requests_end_where_the_rope_of_sliding_layers_does() -> None:
    assert Olmo3Config.from_hf(BASE | {"rope_scaling": YARN}).max_model_len == 2048


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rope_theta": 10000.0}, "rope_theta 10000.0 says nothing certain of sliding layers"),
        (
            {"rope_theta": 10000.0, "rope_parameters": {FULL: {"rope_theta": 10000.0}}},
            "nothing certain of sliding layers",
        ),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}}, "not by layer type"),
        ({"layer_types": ["chunked_attention"] * 5}, "layer type 'chunked_attention' is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
    ],
    ids=["base", "base-of-one", "flat", "chunks", "activation"],
)
def test_what_would_be_a_guess_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        Olmo3Config.from_hf(BASE | changes)


def test_sliding_layers_without_a_window_are_named() -> None:
    with pytest.raises(
        ConfigError, match="olmo3: there are layers of type sliding_attention, and sliding_window is null"
    ):
        Olmo3Config.from_hf(BASE | {"sliding_window": None})


def test_olmo_3_1_32b_as_published() -> None:
    """`config.json` of Olmo 3.1 32B, and what transformers 4.57 and 5.24 make of it."""
    config = Olmo3Config.from_hf(
        {
            "architectures": ["Olmo3ForCausalLM"],
            "attention_bias": False,
            "dtype": "bfloat16",
            "eos_token_id": 100257,
            "hidden_act": "silu",
            "hidden_size": 5120,
            "intermediate_size": 27648,
            "layer_types": ([SLIDING] * 3 + [FULL]) * 16,
            "max_position_embeddings": 65536,
            "model_type": "olmo3",
            "num_attention_heads": 40,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-06,
            "rope_scaling": {
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32,
                "beta_slow": 1,
                "factor": 8.0,
                "original_max_position_embeddings": 8192,
                "rope_type": "yarn",
            },
            "rope_theta": 500000,
            "sliding_window": 4096,
            "tie_word_embeddings": False,
            "vocab_size": 100278,
        }
    )
    assert (config.head_dim, config.num_key_value_heads) == (128, 8)
    assert config.windows == (4096, 4096, 4096, None) * 16
    full, sliding = config.ropes[FULL], config.ropes[SLIDING]
    assert (full.rope_type, full.factor, full.original_max_position_embeddings) == ("yarn", 8.0, 8192)
    assert (full.attention_factor, full.beta_fast, full.beta_slow) == (1.2079441541679836, 32, 1)
    assert (sliding.rope_type, sliding.attention_factor) == ("default", None)
    assert full.rope_theta == sliding.rope_theta == 500000.0
    assert config.max_model_len == 65536
    assert not config.tie_word_embeddings
