"""Tiny GGUF files with quantised matrices, and what transformers computes from what their blocks stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

VOCAB, HEADS, KV_HEADS = 131, 4, 2
CONFIG: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
}
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Hugging Face's names -> llama.cpp's."""


def write_model(
    path: Path, arch: str, kind: Type, *, tied: bool, others: Mapping[str, Type] | None = None
) -> PreTrainedModel:
    """Write a random model with its matrices in `kind` (those whose names end in one of `others` in that); the same
    model in float32 with what the file's numbers stand for."""
    torch.manual_seed(11)
    config = AutoConfig.for_model(arch, **CONFIG, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    writer = gguf.GGUFWriter(path, arch)
    _add_settings(writer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.uniform_(0.5, 1.5)
                _add(writer, arch, name, parameter.numpy(), Type.F32)
                continue
            # Away from zero, so that minima and scales differ from block to block.
            parameter.normal_(std=1.2 / parameter.shape[1] ** 0.5, mean=0.02)
            stored = next((other for end, other in (others or {}).items() if name.endswith(f"{end}.weight")), kind)
            parameter.copy_(_add(writer, arch, name, parameter.numpy(), stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _add_settings(writer: gguf.GGUFWriter) -> None:
    writer.add_context_length(CONFIG["max_position_embeddings"])
    writer.add_embedding_length(CONFIG["hidden_size"])
    writer.add_block_count(CONFIG["num_hidden_layers"])
    writer.add_feed_forward_length(CONFIG["intermediate_size"])
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(CONFIG["head_dim"])
    writer.add_value_length(CONFIG["head_dim"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(CONFIG["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges([])
    writer.add_eos_token_id(2)


def _add(writer: gguf.GGUFWriter, arch: str, name: str, values: np.ndarray, kind: Type) -> torch.Tensor:
    """What is added stands for the result, in Hugging Face's order of rows."""
    stored_name = name
    for own, other in _NAMES.items():
        stored_name = stored_name.replace(own, other)
    heads = {"q_proj.weight": HEADS, "k_proj.weight": KV_HEADS}
    count = next((count for end, count in heads.items() if name.endswith(end) and arch == "llama"), None)
    stored = values if count is None else _neighbours(values, count)
    data = stored if kind == Type.F32 else gguf.quantize(stored, kind)
    writer.add_tensor(stored_name, np.array(data), raw_dtype=kind)
    numbers = stored if kind == Type.F32 else gguf.dequantize(data, kind)
    numbers = np.array(numbers, dtype=np.float32).reshape(values.shape)
    return torch.from_numpy(numbers if count is None else _halves(numbers, count))


def _neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    """The two halves of a head become neighbours, as llama.cpp's converter has it."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def _halves(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)


def rounding(model: PreTrainedModel, left_out: str) -> PreTrainedModel:
    """`model`, whose linear layers and head round their input to int8 by blocks of 32, in this file's own words.

    Those whose names match `left_out` do not.
    """

    def by_blocks(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        blocks = inputs[0].reshape(-1, 32)
        step = blocks.abs().max(1, keepdim=True).values / 127
        return ((torch.round(blocks / step) * step).reshape(inputs[0].shape),)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and re.fullmatch(left_out, name) is None:
            module.register_forward_pre_hook(by_blocks)
    return model
