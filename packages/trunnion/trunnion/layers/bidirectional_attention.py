"""Attention of a text encoder as a model sees it: q, k, v in, attended values out; a token sees its whole request."""

from __future__ import annotations

import torch

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import EncoderGroup, EncoderSpec
from trunnion.layers.group_layer import GroupLayer


class BidirectionalAttention(GroupLayer[EncoderGroup]):
    """Attention of `num_heads` heads, counted on this rank, without a mask and without a cache.

    A model with such a layer needs whole prompts: its executor tells the host so.
    """

    def __init__(self, num_heads: int, head_dim: int, scale: float, *, ctx: BuildContext, prefix: str) -> None:
        if ctx.kv_cache_dtype is not None:
            name = str(ctx.kv_cache_dtype).removeprefix("torch.")
            raise UnsupportedError(f"{prefix}: an encoder caches nothing, in {name} neither; choices: auto")
        super().__init__(EncoderSpec(num_heads=num_heads, head_dim=head_dim, scale=scale, dtype=ctx.dtype), prefix)
        self.num_heads, self.head_dim = num_heads, head_dim

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """q, k, v [T, H * D] or [T, H, D] -> [T, H * D]."""
        shape = (q.shape[0], self.num_heads, self.head_dim)
        return self.run_group(q.reshape(shape), k.reshape(shape), v.reshape(shape)).flatten(1)
