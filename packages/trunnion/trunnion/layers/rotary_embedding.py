"""Rotary embedding as a layer: the table of cosines and sines of one rope, applied to queries and keys."""

from __future__ import annotations

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.config import BuildContext
from trunnion.interfaces.attention import Rotation
from trunnion.rope import RopeParameters, cos_sin_table


class RotaryEmbedding(nn.Module):
    """`rope(positions, q, k) -> q, k`. Build one per rope of a model and hand it to the layers: the table is large.

    A rope with an `mrope_section` takes positions [T, 3] (time, height, width), any other [T].

    The table covers `ctx.max_model_len` positions (`max_position` if that is None) and is real even when the model is
    built on the meta device; `cos_sin_cache` [positions, rotary_dim] float32 is a buffer that no checkpoint holds.
    """

    cos_sin_cache: torch.Tensor

    def __init__(
        self, rope: RopeParameters, head_dim: int, max_position: int, *, interleaved: bool = False, ctx: BuildContext
    ) -> None:
        super().__init__()
        self.rope = rope
        self.interleaved = interleaved
        self.rotary_dim = rope.rotary_dim(head_dim)
        self.mrope_section = tuple(rope.mrope_section)
        if interleaved and self.mrope_section:
            raise ValueError("a rope with an mrope_section is not interleaved")
        cache = cos_sin_table(rope, self.rotary_dim, ctx.max_model_len or max_position)
        self.register_buffer("cos_sin_cache", cache, persistent=False)

    def forward(self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """positions [T] or [T, 3], q [T, H, D], k [T, Hk, D] -> rotated q, k."""
        return rotate(q, k, self.at(positions))

    def at(self, positions: torch.Tensor) -> Rotation:
        """The rotation of tokens at `positions`, for an attention layer to apply."""
        return Rotation(positions, self.cos_sin_cache, self.interleaved, self.mrope_section)


def rotate(q: torch.Tensor, k: torch.Tensor, rotation: Rotation) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, H, D], k [T, Hk, D] -> rotated q, k."""
    positions, table, interleaved, section = rotation
    if section:
        return torch.ops.trunnion.mrope_embedding(q, k, positions, table, section)
    return torch.ops.trunnion.rotary_embedding(q, k, positions, table, interleaved)
