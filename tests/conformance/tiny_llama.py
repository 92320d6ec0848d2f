"""A Llama checkpoint small enough for any test: two layers, random weights, no tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCAB, LAYERS = 32, 48, 4, 2, 8, 131, 2


def write_tiny_llama(folder: Path, head_dim: int = HEAD_DIM) -> Path:
    """Write `config.json` and `model.safetensors` to `folder`, and return it."""
    generator = torch.Generator().manual_seed(11)

    def weight(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    tensors = {"model.embed_tokens.weight": weight(VOCAB, HIDDEN), "lm_head.weight": weight(VOCAB, HIDDEN)}
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    for index in range(LAYERS):
        layer = f"model.layers.{index}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{name}.weight"] = torch.ones(HIDDEN)
        for name, rows in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            tensors[f"{layer}self_attn.{name}_proj.weight"] = weight(rows * head_dim, HIDDEN)
        tensors[f"{layer}self_attn.o_proj.weight"] = weight(HIDDEN, HEADS * head_dim)
        tensors[f"{layer}mlp.gate_proj.weight"] = weight(INTERMEDIATE, HIDDEN)
        tensors[f"{layer}mlp.up_proj.weight"] = weight(INTERMEDIATE, HIDDEN)
        tensors[f"{layer}mlp.down_proj.weight"] = weight(HIDDEN, INTERMEDIATE)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder
