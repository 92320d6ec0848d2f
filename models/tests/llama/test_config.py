"""Llama has no windows, and reaches as far as its rope is stretched."""

from __future__ import annotations

from typing import Any

from trunnion_models.llama.config import LlamaConfig

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


def test_a_stretched_rope_reaches_further() -> None:
    linear = BASE | {"max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert LlamaConfig.from_hf(linear).max_model_len == 256
    assert LlamaConfig.from_hf(BASE | {"max_position_embeddings": 64}).max_model_len == 64
