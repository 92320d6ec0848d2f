"""Latent attention of a flattened module: what it hands to its cache is cached, not the keys and values made of it.

Transformers' modules give their cache a latent and the rotated part of a key, and expand both to keys and values of all
heads. That is linear, so that it can go into queries and outputs (`layers/mla.py`). Which linear layer expands is told
by its shape; whether that is so, by the self-test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from trunnion.adapter.attention import AttentionCall
from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.layers.mla import MLAAttention


@dataclass
class Handed:
    """What a module has handed to its cache last, and nobody has asked for: two tensors [1, heads, T, features]."""

    last: tuple[torch.Tensor, torch.Tensor] | None = None

    def take(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        found, self.last = self.last, None
        return found


@dataclass(frozen=True)
class LatentFacts:
    """What makes a layer of the latent attention of one module."""

    expands: str
    """Within the attention module: the linear layer, latent -> keys without the rotated part, and values."""
    num_heads: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    kv_lora_rank: int
    scale: float


def latent_facts(
    module: nn.Module, call: AttentionCall, handed: tuple[torch.Tensor, torch.Tensor] | None
) -> LatentFacts | None:
    """Of a module that attends in a causal `call`, to what is expanded of what it handed to its cache; None if not."""
    if handed is None or call.soft_cap is not None or call.sinks is not None:
        return None
    if call.mask is not None and call.mask.window() is not None:
        return None
    latent, rope = handed
    num_heads, head_dim, value_dim = call.query.shape[1], call.query.shape[3], call.value.shape[3]
    nope_dim = head_dim - rope.shape[3]
    if latent.shape[1] != 1 or rope.shape[1] != 1 or call.key.shape[1] != num_heads or nope_dim <= 0:
        return None
    wanted = (num_heads * (nope_dim + value_dim), latent.shape[3])
    linears = [
        name
        for name, each in module.named_modules()
        if isinstance(each, nn.Linear) and tuple(each.weight.shape) == wanted and each.bias is None
    ]
    if len(linears) != 1:
        return None
    return LatentFacts(
        linears[0], num_heads, nope_dim, rope.shape[3], value_dim, latent.shape[3], call.scale
    )  # fmt: skip


class LatentAttention(MLAAttention):
    """`MLAAttention` of a module of transformers, whose weight is given by `take_weight`; it has this rank's heads."""

    def __init__(self, facts: LatentFacts, name: str, ctx: BuildContext) -> None:
        self.expands = f"{name}.{facts.expands}"
        super().__init__(
            facts.num_heads,
            facts.qk_nope_head_dim,
            facts.qk_rope_head_dim,
            facts.v_head_dim,
            facts.kv_lora_rank,
            facts.scale,
            kv_b_proj=_Weight(facts),  # type: ignore[arg-type]
            ctx=replace(ctx, parallel=ParallelGroup()),
            prefix=f"{name}.attn",
        )

    def take_weight(self, weight: torch.Tensor) -> None:
        """[H * (Dn + Dv), R], of the linear layer."""
        self._kv_b_proj[0].weight = weight

    def answer(self, call: AttentionCall, handed: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
        """-> [1, T, H, Dv]"""
        assert handed is not None, f"{self.prefix} has handed its latents to a cache in the trial"
        latent, rope = (rows[0, 0] for rows in handed)
        q_nope, q_rope = call.query[0].transpose(0, 1).split(
            (self.qk_nope_head_dim, rope.shape[1]), dim=-1
        )  # fmt: skip
        out = self(q_nope, q_rope.contiguous(), latent.contiguous(), rope.contiguous())
        return out.unflatten(1, (self.num_heads, -1)).unsqueeze(0)


class _Weight:
    """Stands for the linear layer, which the module of transformers has."""

    keeps_dense_weight = True

    def __init__(self, facts: LatentFacts) -> None:
        self.out_features = facts.num_heads * (facts.qk_nope_head_dim + facts.v_head_dim)
        self.in_features = facts.kv_lora_rank
        self.weight: torch.Tensor | None = None

    def dense_weight(self) -> torch.Tensor:
        assert self.weight is not None, "the weight is there before the first step"
        return self.weight
