"""Rotary position embeddings."""

from __future__ import annotations

import torch

from ascend_simulator.rules import Int, Tensor, rule

HALF, INTERLEAVED = 0, 1


def rotated(x: torch.Tensor, mode: int) -> torch.Tensor:
    """Each pair (a, b) becomes (-b, a): pairs of the two halves, or of neighbours."""
    if mode == HALF:
        first, second = x.chunk(2, -1)
        return torch.cat((-second, first), -1)
    if mode == INTERLEAVED:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    raise ValueError(f"rotary mode {mode} is not modelled, only 0 (half) and 1 (interleaved)")


@rule(
    "aclnnRotaryPositionEmbedding",
    source="ops-transformer/posembedding/rotary_position_embedding/docs/aclnnRotaryPositionEmbedding.md",
)
def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor, mode: Int, out: Tensor) -> None:
    """x * cos + rotated(x) * sin in float32; cosines and sines are broadcast over dimensions of one."""
    wide = x.float()
    out.copy_(wide * cos.float() + rotated(wide, mode) * sin.float())


@rule("aclnnInterleaveRope", source="ops-transformer/posembedding/interleave_rope/docs/aclnnInterleaveRope.md")
def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> None:
    """Neighbours are first moved apart, to the two halves, which are then rotated."""
    apart = torch.cat((x[..., ::2], x[..., 1::2]), -1).float()
    out.copy_(apart * cos.float() + rotated(apart, HALF) * sin.float())
