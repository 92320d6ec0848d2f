"""Llama has no windows, Mistral has one unless told otherwise, and Mistral has no biases."""

from __future__ import annotations

from typing import Any

import pytest

from trunnion_models.llama.config import LlamaConfig, MistralConfig

BASE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def test_llama_ignores_a_window() -> None:
    assert LlamaConfig.from_hf(BASE | {"sliding_window": 5}).sliding_window is None


@pytest.mark.parametrize(
    ("changes", "window"), [({}, 4096), ({"sliding_window": None}, None), ({"sliding_window": 5}, 5)], ids=str
)
def test_mistral_without_the_key_has_the_default_window(changes: dict[str, Any], window: int | None) -> None:
    assert MistralConfig.from_hf(BASE | changes).sliding_window == window


def test_mistral_has_no_biases() -> None:
    config = MistralConfig.from_hf(BASE | {"attention_bias": True, "mlp_bias": True})
    assert not config.attention_bias
    assert not config.mlp_bias


def test_a_stretched_rope_reaches_further() -> None:
    linear = BASE | {"max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert LlamaConfig.from_hf(linear).max_model_len == 256
    assert LlamaConfig.from_hf(BASE | {"max_position_embeddings": 64}).max_model_len == 64
