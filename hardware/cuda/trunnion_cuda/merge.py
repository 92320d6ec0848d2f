"""The merge of attention over two sets of keys: this package's kernel, or torch where Triton has no device."""

from __future__ import annotations

from collections.abc import Callable

import torch

from trunnion_cuda.environment import why_no_kernels

Merge = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], None]


def merge_function(num_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> Merge:
    """This package's kernel, compiled for rows of these heads, or torch where Triton cannot launch it."""
    if why_no_kernels() is not None:
        return merge_in_torch
    # Imports Triton.
    from trunnion_cuda.kernels.merge_states import merge_states

    # No step of warm_up has levels, and none that is served may wait for the compiler. The sums of a row in the middle
    # may lie where Triton compiles anew.
    rows = torch.zeros(2, num_heads, head_dim, dtype=dtype, device=device)
    sums = torch.zeros(2, num_heads, dtype=torch.float32, device=device)
    for first in (0, 1):
        merge_states(rows[first:], sums[first:], rows[: 2 - first], sums[: 2 - first])
    return merge_states


def merge_in_torch(out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> None:
    """As `trunnion_cuda.kernels.merge_states`."""
    top = torch.maximum(lse, other_lse)
    base = top.masked_fill(top.isneginf(), 0.0)
    weights = [torch.exp2(side - base) for side in (lse, other_lse)]
    total = (weights[0] + weights[1]).clamp_min(torch.finfo(torch.float32).tiny)
    parts = (
        torch.where((weight > 0).unsqueeze(-1), rows.float() * (weight / total).unsqueeze(-1), 0.0)
        for rows, weight in zip((out, other), weights, strict=True)
    )
    out.copy_(sum(parts))
