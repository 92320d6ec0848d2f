"""Tiny checkpoints with random weights, and how transformers continues prompts with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

logging.disable_progress_bar()

VOCAB_SIZE = 131
_SMALL: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 24,
    "max_position_embeddings": 96,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SMALL,
    "qwen3": _SMALL | {"tie_word_embeddings": True},
    "gemma3_text": _SMALL
    | {"sliding_window": 6, "query_pre_attn_scalar": 20, "layer_types": ["sliding_attention", "full_attention"]},
    "deepseek_v2": _SMALL
    | {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 20,
        "head_dim": 8,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
        "n_routed_experts": 8,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
    },
}
"""Model type -> configuration; a single KV head, which ranks share, wherever the family has KV heads."""


def save_model(model_type: str, folder: Path, **changes: Any) -> PreTrainedModel:
    """A float32 model whose logits are far from ties, saved in `folder`."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(model_type, **CONFIGS[model_type] | changes)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.0 if "embed_tokens" in name else 1.4 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(folder)
    return model


@torch.inference_mode()
def greedy(model: PreTrainedModel, prompt: list[int], num_tokens: int) -> list[int]:
    """The most likely continuation, computed anew for every token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]
