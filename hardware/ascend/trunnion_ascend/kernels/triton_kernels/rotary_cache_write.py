"""Rotary embedding of queries and keys and the write of keys and values, in one launch.

torch_npu has `npu_rotary_mul` for one tensor at a time and `_npu_reshape_and_cache` behind it: three launches, and keys
that go to memory and come back. Here a row is read once and written once, `2 b (Hq + 2 Hk) D` bytes a token.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunnion_ascend.kernels.triton_kernels.launch import grid, power_of_two


@triton.jit
def _rotated(first, second, cos, sin):
    """Halves of heads [H, R / 2], turned by [R / 2] angles, in float32."""
    return first * cos[None, :] - second * sin[None, :], second * cos[None, :] + first * sin[None, :]


@triton.jit
def rotary_cache_write_kernel(
    q, k, v, positions, table, slots, q_out, k_cache, v_cache, num_tokens, q_row, k_row, v_row,
    HQ: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, HALF: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_REST: tl.constexpr,
):  # fmt: skip
    """A task is a token. Features beyond 2 * HALF pass."""
    half = tl.arange(0, BLOCK_HALF)
    has_half = half < HALF
    q_head, k_head = tl.arange(0, BLOCK_Q)[:, None], tl.arange(0, BLOCK_K)[:, None]
    feature = tl.arange(0, BLOCK_D)[None, :]
    rest = 2 * HALF + tl.arange(0, BLOCK_REST)[None, :]
    q_turns, k_turns = (q_head < HQ) & has_half[None, :], (k_head < HK) & has_half[None, :]
    q_rests, k_rests = (q_head < HQ) & (rest < D), (k_head < HK) & (rest < D)
    dtype = q_out.dtype.element_ty
    for token in range(tl.program_id(0), num_tokens, tl.num_programs(0)):
        at = tl.cast(token, tl.int64)
        angles = table + tl.load(positions + token).to(tl.int64) * (2 * HALF) + half
        cos = tl.load(angles, mask=has_half, other=0.0).to(tl.float32)
        sin = tl.load(angles + HALF, mask=has_half, other=0.0).to(tl.float32)
        source, target = q + at * q_row + q_head * D, q_out + at * (HQ * D) + q_head * D
        first = tl.load(source + half[None, :], mask=q_turns, other=0.0).to(tl.float32)
        second = tl.load(source + HALF + half[None, :], mask=q_turns, other=0.0).to(tl.float32)
        turned_first, turned_second = _rotated(first, second, cos, sin)
        tl.store(target + half[None, :], turned_first.to(dtype), mask=q_turns)
        tl.store(target + HALF + half[None, :], turned_second.to(dtype), mask=q_turns)
        if 2 * HALF < D:
            tl.store(target + rest, tl.load(source + rest, mask=q_rests, other=0.0), mask=q_rests)
        slot = tl.load(slots + token).to(tl.int64)
        # Tokens without a slot are written nowhere.
        if slot >= 0:
            key, kept = k + at * k_row + k_head * D, k_cache + slot * (HK * D) + k_head * D
            low = tl.load(key + half[None, :], mask=k_turns, other=0.0).to(tl.float32)
            high = tl.load(key + HALF + half[None, :], mask=k_turns, other=0.0).to(tl.float32)
            turned_low, turned_high = _rotated(low, high, cos, sin)
            tl.store(kept + half[None, :], turned_low.to(dtype), mask=k_turns)
            tl.store(kept + HALF + half[None, :], turned_high.to(dtype), mask=k_turns)
            if 2 * HALF < D:
                tl.store(kept + rest, tl.load(key + rest, mask=k_rests, other=0.0), mask=k_rests)
            has_value = (k_head < HK) & (feature < D)
            value = tl.load(v + at * v_row + k_head * D + feature, mask=has_value, other=0.0)
            tl.store(v_cache + slot * (HK * D) + k_head * D + feature, value, mask=has_value)


def rotary_cache_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
) -> torch.Tensor:
    """Queries as `trunnion::rotary_embedding` turns them by halves; keys, turned, and values lie in their slots.

    Args:
        q: [T, Hq, D]; rows may lie apart, heads may not.
        k, v: [T, Hk, D], as q.
        positions: [T] int32.
        cos_sin_cache: [max_position, R], R even, at most D: cosines, then sines.
        slot_mapping: [T] int32; -1: nowhere.
        k_cache, v_cache: [num_blocks, block_size, Hk, D], contiguous, of q's dtype.

    Returns:
        [T, Hq, D], contiguous.
    """
    tokens, heads, dim = q.shape
    half = cos_sin_cache.shape[1] // 2
    out = torch.empty((tokens, heads, dim), dtype=q.dtype, device=q.device)
    if tokens:
        rotary_cache_write_kernel[grid(tokens)](
            q, k, v, positions, cos_sin_cache, slot_mapping, out, k_cache, v_cache, tokens,
            q.stride(0), k.stride(0), v.stride(0), HQ=heads, HK=k.shape[1], D=dim, HALF=half,
            BLOCK_Q=power_of_two(heads), BLOCK_K=power_of_two(k.shape[1]), BLOCK_HALF=power_of_two(half),
            BLOCK_D=power_of_two(dim), BLOCK_REST=power_of_two(max(dim - 2 * half, 1)),
        )  # fmt: skip
    return out
