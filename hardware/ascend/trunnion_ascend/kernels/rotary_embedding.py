"""Rotary position embedding of queries and keys by `npu_rotary_mul`, with one or three position axes.

Cosines and sines are taken from the table once for both, in the dtype of the queries: the operator wants one dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch_npu

from trunnion.ops.registry import decline

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
END_OF_ROTARY_DIM = 896
END_OF_HEADS = 1000


def _why_not(table: torch.Tensor, *heads: torch.Tensor) -> str | None:
    if any(x.dtype not in DTYPES or x.dtype != heads[0].dtype for x in heads):
        return "heads that are not of one dtype, float16, bfloat16 or float32"
    if not 0 < table.shape[1] < END_OF_ROTARY_DIM:
        return f"{table.shape[1]} rotated features; the operator takes 2 to {END_OF_ROTARY_DIM - 2}"
    if any(x.shape[1] >= END_OF_HEADS for x in heads):
        return f"{END_OF_HEADS} heads or more"
    return None


def _rotated(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos, sin [T, R / 2] -> q [T, H, D] and k [T, Hk, D] with their first R features rotated."""
    factors = [_for_both_of_a_pair(part, interleaved).to(q.dtype)[None, :, None] for part in (cos, sin)]
    mode = "interleave" if interleaved else "half"
    return _turned(q, *factors, mode), _turned(k, *factors, mode)


def _for_both_of_a_pair(part: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """[T, R / 2] -> [T, R]."""
    return torch.stack((part, part), dim=-1).flatten(-2) if interleaved else torch.cat((part, part), dim=-1)


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mode: str) -> torch.Tensor:
    """x [T, H, D], cos and sin [1, T, 1, R]: the layout BSND, of one sequence of T."""
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    size = cos.shape[-1]
    turned = torch_npu.npu_rotary_mul(x[..., :size].contiguous().unsqueeze(0), cos, sin, mode).squeeze(0)
    return turned if size == x.shape[-1] else torch.cat((turned, x[..., size:]), dim=-1)


def rotary_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::rotary_embedding`."""
    if (reason := _why_not(cos_sin_cache, q, k)) is not None:
        return decline("rotary_embedding", reason, q, k, positions, cos_sin_cache, interleaved)
    cos, sin = cos_sin_cache.index_select(0, positions).chunk(2, dim=-1)
    return _rotated(q, k, cos, sin, interleaved)


def mrope_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, section: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::mrope_embedding`."""
    if (reason := _why_not(cos_sin_cache, q, k)) is not None:
        return decline("mrope_embedding", reason, q, k, positions, cos_sin_cache, section)
    rows = cos_sin_cache.index_select(0, positions.flatten()).unflatten(0, (-1, 3))  # [T, 3, R]
    cos, sin = (
        torch.cat([run[:, axis % 3] for axis, run in enumerate(half.split(list(section), dim=-1))], dim=-1)
        for half in rows.chunk(2, dim=-1)
    )
    return _rotated(q, k, cos, sin, False)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"rotary_embedding": rotary_embedding, "mrope_embedding": mrope_embedding}
