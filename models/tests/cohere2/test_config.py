"""Cohere 2: which layers have a window, what the configuration leaves out, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion.errors import ConfigError, UnsupportedError
from trunnion_models.cohere2.config import Cohere2Config

BASE: dict[str, Any] = {
    "model_type": "cohere2",
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
}
FULL, SLIDING = "full_attention", "sliding_attention"


def test_defaults_are_those_of_the_family() -> None:
    config = Cohere2Config.from_hf(BASE)
    assert (config.num_key_value_heads, config.head_dim, config.layer_norm_eps) == (4, 16, 1e-5)
    assert (config.rope.rope_type, config.rope.rope_theta, config.max_model_len) == ("default", 10000.0, 8192)
    assert config.windows == (4096, 4096, 4096, None, 4096)
    assert config.logit_scale == 0.0625
    assert config.tie_word_embeddings
    assert not config.attention_bias


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"sliding_window": 7, "sliding_window_pattern": 2}, (7, None, 7, None, 7)),
        ({"sliding_window_pattern": 1, "sliding_window": None}, (None,) * 5),
        ({"layer_types": [FULL, SLIDING, FULL, FULL, SLIDING]}, (None, 4096, None, None, 4096)),
        ({"layer_types": [SLIDING] * 5, "sliding_window_pattern": 2, "sliding_window": 3}, (3,) * 5),
    ],
    ids=["pattern", "none", "by-type", "types-before-pattern"],
)
def test_windows(changes: dict[str, Any], windows: tuple[int | None, ...]) -> None:
    assert Cohere2Config.from_hf(BASE | changes).windows == windows


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sliding_window": None}, "layers of type sliding_attention, and sliding_window is null"),
        ({"sliding_window_pattern": 0}, "sliding_window_pattern must be positive, got 0"),
        ({"layer_types": [FULL]}, "layer_types has 1 entries for 5 layers"),
        ({"logit_scale": "big"}, "logit_scale must be float, got 'big'"),
    ],
    ids=["no-window", "pattern", "types", "logit-scale"],
)
def test_a_bad_value_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Cohere2Config.from_hf(BASE | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; choices: 'silu'"),
        ({"order_of_interleaved_layers": "global_attn_first"}, "order_of_interleaved_layers 'global_attn_first'"),
        ({"position_embedding_type": "rope_neox"}, "position_embedding_type 'rope_neox'"),
        ({"rotary_pct": 0.5}, "rotary_pct 0.5"),
        ({"use_gated_activation": False}, "use_gated_activation False"),
        ({"use_parallel_block": False}, "use_parallel_block False"),
        ({"use_qk_norm": True}, "use_qk_norm True"),
        ({"layer_types": ["chunked_attention"] * 5}, "layer type 'chunked_attention'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_done_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=f"cohere2: {words}"):
        Cohere2Config.from_hf(BASE | changes)


def test_tiny_aya_as_published() -> None:
    """What `config.json` of Tiny Aya Earth says, which says nothing of its tied head."""
    config = Cohere2Config.from_hf(
        {
            "architectures": ["Cohere2ForCausalLM"],
            "cache_implementation": "hybrid",
            "head_dim": 128,
            "hidden_act": "silu",
            "hidden_size": 2048,
            "intermediate_size": 11008,
            "layer_switch": 4,
            "layer_types": [SLIDING, SLIDING, SLIDING, FULL] * 9,
            "logit_scale": 1.0,
            "max_position_embeddings": 500000,
            "model_type": "cohere2",
            "num_attention_heads": 16,
            "num_hidden_layers": 36,
            "num_key_value_heads": 4,
            "order_of_interleaved_layers": "local_attn_first",
            "position_embedding_type": "rope_gptj",
            "rope_theta": 50000,
            "rotary_pct": 1.0,
            "use_embedding_sharing": True,
            "use_gated_activation": True,
            "use_parallel_block": True,
            "use_parallel_embedding": False,
            "use_qk_norm": False,
            "vocab_size": 262144,
        }
    )
    assert (config.head_dim, config.num_key_value_heads, config.max_model_len) == (128, 4, 500000)
    assert config.windows == (4096, 4096, 4096, None) * 9
    assert (config.rope.rope_theta, config.logit_scale, config.layer_norm_eps) == (50000.0, 1.0, 1e-5)
    assert config.tie_word_embeddings
