"""Rotary position embedding (arXiv:2104.09864) of queries and keys from a table of cosines and sines."""

from __future__ import annotations

import torch

from trunnion.ops.registry import define


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """Rotate the first 2 * R features of x [T, H, D] by the angles of cos, sin [T, 1, R]; the others pass."""
    half = cos.shape[-1]
    rotated, rest = x[..., : 2 * half].float(), x[..., 2 * half :]
    if interleaved:
        first, second = rotated[..., 0::2], rotated[..., 1::2]
    else:
        first, second = rotated[..., :half], rotated[..., half:]
    turned = (first * cos - second * sin, second * cos + first * sin)
    rotated = torch.stack(turned, dim=-1).flatten(-2) if interleaved else torch.cat(turned, dim=-1)
    return torch.cat((rotated.to(x.dtype), rest), dim=-1)


def _fake_rotary_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return (
        torch.empty(q.shape, dtype=q.dtype, device=q.device),
        torch.empty(k.shape, dtype=k.dtype, device=k.device),
    )


@define(
    "rotary_embedding(Tensor q, Tensor k, Tensor positions, Tensor cos_sin_cache, bool interleaved)"
    " -> (Tensor, Tensor)",
    fake=_fake_rotary_embedding,
)
def rotary_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, H, D], k [T, Hk, D], positions [T], cos_sin_cache [max_position, rotary_dim] float32 -> rotated (q, k).

    A row of the table holds rotary_dim / 2 cosines, then as many sines. Pairs are (i, i + rotary_dim / 2), or
    (2 i, 2 i + 1) if `interleaved`; features from `rotary_dim` on pass unchanged. Computed in float32.
    """
    cos, sin = cos_sin_cache.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)  # [T, 1, R]
    return _rotate(q, cos, sin, interleaved), _rotate(k, cos, sin, interleaved)


def _fake_mrope_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, section: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_rotary_embedding(q, k, positions, cos_sin_cache, False)


@define(
    "mrope_embedding(Tensor q, Tensor k, Tensor positions, Tensor cos_sin_cache, int[] section) -> (Tensor, Tensor)",
    fake=_fake_mrope_embedding,
)
def mrope_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, section: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [T, H, D], k [T, Hk, D], positions [T, 3], cos_sin_cache [max_position, rotary_dim] float32 -> rotated (q, k).

    The rotated pairs are cut into runs of `section` pairs, which add up to rotary_dim / 2; run i turns by the position
    on axis i mod 3 (Qwen2-VL, arXiv:2409.12191). All else is `rotary_embedding`'s, not interleaved.
    """
    rows = cos_sin_cache.index_select(0, positions.flatten()).unflatten(0, (-1, 3))  # [T, 3, rotary_dim]
    cos, sin = (
        torch.cat([run[:, axis % 3] for axis, run in enumerate(half.split(section, dim=-1))], dim=-1).unsqueeze(1)
        for half in rows.chunk(2, dim=-1)
    )  # [T, 1, R]
    return _rotate(q, cos, sin, False), _rotate(k, cos, sin, False)
