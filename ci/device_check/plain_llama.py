"""A Llama as one would write it in torch alone, and its checkpoint: what a decode step is held against."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Shape:
    """Of the model that decodes: its sizes, requests and cached tokens each."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    requests: int
    context: int
    steps: int


LARGE = Shape(2048, 16, 16, 8, 128, 5632, 32000, 8, 512, 50)
SMALL = Shape(64, 2, 4, 2, 64, 96, 131, 2, 18, 2)
"""On a simulated device, which takes long."""


def write_model(folder: Path, shape: Shape) -> dict[str, Any]:
    """A Llama with random weights in bfloat16, as a checkpoint in `folder` -> its tensors by name."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)
    sizes: dict[str, tuple[int, ...]] = {"model.embed_tokens": (shape.vocab, shape.hidden)}
    for index in range(shape.layers):
        layer = f"model.layers.{index}"
        for part, heads in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            sizes[f"{layer}.self_attn.{part}_proj"] = (heads * shape.head_dim, shape.hidden)
        sizes[f"{layer}.self_attn.o_proj"] = (shape.hidden, shape.heads * shape.head_dim)
        sizes[f"{layer}.mlp.gate_proj"] = sizes[f"{layer}.mlp.up_proj"] = (shape.intermediate, shape.hidden)
        sizes[f"{layer}.mlp.down_proj"] = (shape.hidden, shape.intermediate)
    sizes["lm_head"] = (shape.vocab, shape.hidden)
    weights = {
        f"{name}.weight": torch.randn(size, generator=generator) * size[1] ** -0.5 for name, size in sizes.items()
    }
    norms = ["model.norm"]
    norms += [f"model.layers.{i}.{n}_layernorm" for i in range(shape.layers) for n in ("input", "post_attention")]
    weights |= {f"{name}.weight": torch.ones(shape.hidden) for name in norms}
    weights = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": shape.vocab,
        "hidden_size": shape.hidden, "intermediate_size": shape.intermediate, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim,
        "max_position_embeddings": shape.context + 8, "tie_word_embeddings": False, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return weights


class PlainLlama:
    """Llama as one would write it in torch for requests of one length: eager, contiguous caches, library attention."""

    def __init__(self, weights: dict[str, Any], shape: Shape, device: Any) -> None:
        import torch

        self.weights = {name.removesuffix(".weight"): tensor.to(device) for name, tensor in weights.items()}
        self.shape = shape
        size = shape.requests, shape.kv_heads, shape.context + 8, shape.head_dim
        self.caches = [
            [torch.zeros(size, dtype=torch.bfloat16, device=device) for _ in "kv"] for _ in range(shape.layers)
        ]
        frequencies = 10000.0 ** (-torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim)
        angles = torch.arange(shape.context + 8, device=device)[:, None] * frequencies
        self.cos, self.sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def step(self, tokens: Any, start: int) -> Any:
        """tokens [B, n] at positions `start ...` -> logits [B, vocab] of the last."""
        import torch.nn.functional as F

        x = F.embedding(tokens, self.weights["model.embed_tokens"])
        for index in range(self.shape.layers):
            layer = f"model.layers.{index}"
            x = x + self._attend(index, self._norm(x, f"{layer}.input_layernorm"), start)
            y = self._norm(x, f"{layer}.post_attention_layernorm")
            gate, up = self._linear(y, f"{layer}.mlp.gate_proj"), self._linear(y, f"{layer}.mlp.up_proj")
            x = x + self._linear(F.silu(gate) * up, f"{layer}.mlp.down_proj")
        return self._linear(self._norm(x[:, -1], "model.norm"), "lm_head")

    def _attend(self, index: int, x: Any, start: int) -> Any:
        import torch.nn.functional as F

        layer, end = f"model.layers.{index}.self_attn", start + x.shape[1]
        q, k, v = (
            self._linear(x, f"{layer}.{part}_proj").unflatten(-1, (-1, self.shape.head_dim)).transpose(1, 2)
            for part in "qkv"
        )
        keys, values = self.caches[index]
        keys[:, :, start:end], values[:, :, start:end] = self._rotate(k, start, end), v
        out = F.scaled_dot_product_attention(
            self._rotate(q, start, end), keys[:, :, :end], values[:, :, :end], is_causal=x.shape[1] > 1, enable_gqa=True
        )
        return self._linear(out.transpose(1, 2).flatten(2), f"{layer}.o_proj")

    def _rotate(self, x: Any, start: int, end: int) -> Any:
        import torch

        first, second = x.float().chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return (x.float() * self.cos[start:end] + turned * self.sin[start:end]).to(x.dtype)

    def _norm(self, x: Any, name: str) -> Any:
        import torch.nn.functional as F

        return F.rms_norm(x, (x.shape[-1],), self.weights[name], 1e-5)

    def _linear(self, x: Any, name: str) -> Any:
        import torch.nn.functional as F

        return F.linear(x, self.weights[name])
