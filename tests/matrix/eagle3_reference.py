"""The truth for EAGLE-3 drafts in plain torch, by the authors' own code (SafeAILab/EAGLE, eagle/model/cnets.py).

Row p takes the token at p + 1 and states of the target at p: those before three of its layers, side by side, which `fc`
makes as wide as the draft. From the second draft on it takes what the draft's layer returned instead, before its final
norm. The layer attends over the normalised embedding beside the normalised state; the position is p. Its logits are
those of few tokens: the i-th is token i + d2t[i] of the target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, PreTrainedModel
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)

from trunnion_models.card import Card

FOLDER = "draft"
"""Of the draft's checkpoint, within the target's."""


class Eagle3Reference(nn.Module):
    """Parameters are named as the authors publish them; `embed_tokens` and `lm_head` only if they are the draft's own.

    Args:
        published: `config.json` of the draft, as the authors, SpecForge or speculators write it.
        num_layers: of the target.
        target_size: its `hidden_size`.
    """

    def __init__(self, published: Mapping[str, Any], num_layers: int, target_size: int) -> None:
        super().__init__()
        self.published_config = published
        layer = {**published, **published.get("transformer_layer_config", {})}
        config = LlamaConfig(**{name: value for name, value in layer.items() if name != "architectures"})
        self.config = config
        self.target_layers = _target_layers(published, num_layers)
        self.norm_before_residual = published.get("norm_before_residual", False)
        size, eps, self.head_dim = config.hidden_size, config.rms_norm_eps, config.head_dim
        heads, kv_heads = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        bias = config.attention_bias
        self.fc = nn.Linear(len(self.target_layers) * target_size, size, bias=False)
        self.midlayer = nn.Module()
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            self.midlayer.add_module(name, LlamaRMSNorm(size, eps=eps))
        self.midlayer.self_attn = nn.Module()
        for name, rows in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
            self.midlayer.self_attn.add_module(f"{name}_proj", nn.Linear(2 * size, rows, bias=bias))
        self.midlayer.self_attn.o_proj = nn.Linear(heads, size, bias=bias)
        self.midlayer.mlp = LlamaMLP(config)
        self.norm = LlamaRMSNorm(size, eps=eps)
        self.num_tokens = published["draft_vocab_size"]
        if self.num_tokens < config.vocab_size:
            self.lm_head = nn.Linear(size, self.num_tokens, bias=False)
            self.register_buffer("d2t", torch.zeros(self.num_tokens, dtype=torch.int64))
            self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool))
        if size != target_size:
            self.embed_tokens = nn.Embedding(config.vocab_size, size)
        self.rotary_emb = LlamaRotaryEmbedding(config=config)

    @property
    def token_ids(self) -> torch.Tensor:
        """[num_tokens]: the target's tokens that are drafted."""
        ids = torch.arange(self.num_tokens)
        return ids + self.d2t if hasattr(self, "d2t") else ids

    def choose_tokens(self, ids: torch.Tensor) -> None:
        """Draft these tokens of the target, [num_tokens] in rising order."""
        if hasattr(self, "d2t"):
            self.d2t.copy_(ids - torch.arange(self.num_tokens))
            self.t2d[ids] = True

    def combine(self, states: torch.Tensor) -> torch.Tensor:
        """[layers + 1, B, S, H], see `streams` -> [B, S, own size]."""
        return self.fc(torch.cat([states[number] for number in self.target_layers], dim=-1))

    def embed(self, ids: torch.Tensor, target: PreTrainedModel) -> torch.Tensor:
        own: nn.Module = self.embed_tokens if hasattr(self, "embed_tokens") else target.model.embed_tokens
        return own(ids)

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Embeddings of the tokens at 1 ... S, states at 0 ... S - 1, both [B, S, H] -> states [B, S, H]."""
        layer = self.midlayer
        normed = layer.hidden_norm(hidden)
        x = torch.cat((layer.input_layernorm(embeds), normed), dim=-1)
        x = self._attend(x) + (normed if self.norm_before_residual else hidden)
        return x + layer.mlp(layer.post_attention_layernorm(x))

    def logits(self, hidden: torch.Tensor, target: PreTrainedModel) -> torch.Tensor:
        """[..., num_tokens], of the tokens `token_ids`."""
        head: nn.Module = self.lm_head if hasattr(self, "lm_head") else target.lm_head
        return head(self.norm(hidden))

    def _attend(self, x: torch.Tensor) -> torch.Tensor:
        attn, (batch, length, _) = self.midlayer.self_attn, x.shape
        q, k, v = (
            getattr(attn, f"{name}_proj")(x).view(batch, length, -1, self.head_dim).transpose(1, 2) for name in "qkv"
        )
        q, k = apply_rotary_pos_emb(q, k, *self.rotary_emb(x, torch.arange(length).unsqueeze(0)))
        k, v = (repeat_kv(states, q.shape[1] // states.shape[1]) for states in (k, v))
        scores = q @ k.transpose(2, 3) / self.head_dim**0.5
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = F.softmax(scores.masked_fill(future, -torch.inf), dim=-1, dtype=torch.float32).to(x.dtype)
        return attn.o_proj((weights @ v).transpose(1, 2).flatten(2))

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """A checkpoint of its own, in the names of who writes such a configuration."""
        folder.mkdir()
        own = "layers.0" if "speculators_model_type" in self.published_config else "midlayer"
        tensors = {name.replace("midlayer", own): t.detach().contiguous() for name, t in self.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        config = {"dtype": str(dtype).removeprefix("torch."), **self.published_config}
        (folder / "config.json").write_text(json.dumps(config))


def make_eagle3(card: Card, generator: torch.Generator) -> Eagle3Reference:
    """The card's draft, which has random tokens of the target."""
    assert card.draft_config is not None, f"{card.name} has no draft of its own"
    head = Eagle3Reference(card.draft_config, card.config["num_hidden_layers"], card.config["hidden_size"])
    chosen = torch.randperm(card.vocab_size, generator=generator)[: head.num_tokens]
    head.choose_tokens(chosen.sort().values)
    return head


def load_eagle3(card: Card, folder: Path, dtype: torch.dtype) -> Eagle3Reference:
    """What `save` has put into `folder`."""
    head = make_eagle3(card, torch.Generator())
    stored = load_file(folder / "model.safetensors")
    head.load_state_dict({name.replace("layers.0", "midlayer"): tensor for name, tensor in stored.items()})
    return head.to(dtype).eval()


@torch.inference_mode()
def eagle3_rows(head: Eagle3Reference, target: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """[B, S - 1, num_tokens] of ids [B, S]: what is drafted from each of the target's states."""
    hidden = head.combine(streams(target, ids[:, :-1]))
    return head.logits(head(head.embed(ids[:, 1:], target), hidden), target).float()


@torch.inference_mode()
def streams(target: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """[layers + 1, B, S, H]: what each layer of the target takes, and what its final norm takes."""
    seen: list[torch.Tensor] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        for module in (*target.model.layers, target.model.norm)
    ]
    target(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return torch.stack(seen)


def _target_layers(published: Mapping[str, Any], num_layers: int) -> tuple[int, ...]:
    """By what is taken: SpecForge and SGLang write (`eagle_config`) by what is made, one less."""
    made = published.get("eagle_config", {}).get("eagle_aux_hidden_state_layer_ids")
    if made is not None:
        return tuple(number + 1 for number in made)
    return tuple(published.get("eagle_aux_hidden_state_layer_ids", (2, num_layers // 2, num_layers - 3)))
