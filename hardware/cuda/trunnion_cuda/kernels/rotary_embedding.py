"""Rotary position embedding of queries and keys, with one or three position axes, and fused with the cache write.

For T tokens of H query and Hk key heads of D features of b bytes: `2 T (H + Hk) D b` bytes and the table's row; with
the write `2 T Hk D b` more for the value, and the key's again. 3 FLOPs per feature: memory bandwidth is the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
"""An fp8 cache needs a later one than sm_80."""
SPACE = Space(
    "rotary_embedding",
    (Config({"HEADS": 8}), Config({"HEADS": 4}, num_warps=2), Config({"HEADS": 16}), Config({"HEADS": 2}, num_warps=1)),
)
FP8_MAX = 448.0
MAX_RUNS = 3
"""Runs of pairs that each turn by one axis."""


@triton.jit
def to_cache(x, scale, dtype: tl.constexpr):
    """x float32 as the cache keeps it: divided by its scale, within e4m3's range."""
    if dtype == tl.float8e4nv:
        return tl.minimum(tl.maximum(x / scale, -448.0), 448.0).to(dtype)
    else:
        return x.to(dtype)


@triton.jit
def _turn(source, source_head, target, cached, is_cached, scale, heads, is_head, cos, sin,
          HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, PASS_BLOCK: tl.constexpr,
          INTERLEAVED: tl.constexpr, WRITES: tl.constexpr):  # fmt: skip
    """Rotate heads [N] of one token; with WRITES into the cache's row as well."""
    pair = tl.arange(0, HALF_BLOCK)
    mask = is_head[:, None] & (pair < HALF)[None, :]
    first = 2 * pair if INTERLEAVED else pair
    second = 2 * pair + 1 if INTERLEAVED else pair + HALF
    read = source + heads[:, None] * source_head
    written = heads[:, None] * HEAD_DIM
    a = tl.load(read + first[None, :], mask=mask, other=0.0).to(tl.float32)
    b = tl.load(read + second[None, :], mask=mask, other=0.0).to(tl.float32)
    turned_a = a * cos[None, :] - b * sin[None, :]
    turned_b = b * cos[None, :] + a * sin[None, :]
    dtype: tl.constexpr = target.dtype.element_ty
    tl.store(target + written + first[None, :], turned_a.to(dtype), mask=mask)
    tl.store(target + written + second[None, :], turned_b.to(dtype), mask=mask)
    if WRITES:
        # Rounded as the key is, so that the cache holds what the reference writes.
        kept_a = to_cache(turned_a.to(dtype).to(tl.float32), scale, cached.dtype.element_ty)
        kept_b = to_cache(turned_b.to(dtype).to(tl.float32), scale, cached.dtype.element_ty)
        tl.store(cached + written + first[None, :], kept_a, mask=mask & is_cached)
        tl.store(cached + written + second[None, :], kept_b, mask=mask & is_cached)
    if HEAD_DIM > 2 * HALF:
        rest = 2 * HALF + tl.arange(0, PASS_BLOCK)
        rest_mask = is_head[:, None] & (rest < HEAD_DIM)[None, :]
        passed = tl.load(read + rest[None, :], mask=rest_mask, other=0.0)
        tl.store(target + written + rest[None, :], passed, mask=rest_mask)
        if WRITES:
            kept = to_cache(passed.to(tl.float32), scale, cached.dtype.element_ty)
            tl.store(cached + written + rest[None, :], kept, mask=rest_mask & is_cached)


@triton.jit
def _rotary_kernel(
    q, k, v, positions, table, q_out, k_out, k_cache, v_cache, slots, num_slots,
    q_token, q_head, k_token, k_head, v_token, v_head, num_q_heads, num_kv_heads, q_blocks,
    block_size, cache_block, cache_token, k_scale, v_scale,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, PASS_BLOCK: tl.constexpr,
    V_BLOCK: tl.constexpr, INTERLEAVED: tl.constexpr, AXES: tl.constexpr, RUN_0: tl.constexpr, RUN_1: tl.constexpr,
    WRITES: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    pair = tl.arange(0, HALF_BLOCK)
    if AXES == 1:
        position = tl.load(positions + token).to(tl.int64)
        angle = table + position * (2 * HALF) + pair
    else:
        axis = tl.where(pair < RUN_0, 0, tl.where(pair < RUN_0 + RUN_1, 1, 2))
        angle = table + tl.load(positions + token * 3 + axis).to(tl.int64) * (2 * HALF) + pair
    cos = tl.load(angle, mask=pair < HALF, other=0.0)
    sin = tl.load(angle + HALF, mask=pair < HALF, other=0.0)
    if block < q_blocks:
        heads = block * HEADS + tl.arange(0, HEADS)
        _turn(q + token * q_token, q_head, q_out + token * num_q_heads * HEAD_DIM, k_cache, False, 1.0,
              heads, heads < num_q_heads, cos, sin,
              HEAD_DIM, HALF, HALF_BLOCK, PASS_BLOCK, INTERLEAVED, False)  # fmt: skip
    else:
        heads = (block - q_blocks) * HEADS + tl.arange(0, HEADS)
        is_head = heads < num_kv_heads
        row = k_cache
        is_cached = False
        if WRITES:
            slot = tl.load(slots + token, mask=token < num_slots, other=-1).to(tl.int64)
            is_cached = slot >= 0
            kept = tl.maximum(slot, 0)
            at = (kept // block_size) * cache_block + (kept % block_size) * cache_token
            row = k_cache + at
            feature = tl.arange(0, V_BLOCK)
            mask = is_head[:, None] & (feature < HEAD_DIM)[None, :]
            value = tl.load(v + token * v_token + heads[:, None] * v_head + feature[None, :], mask=mask, other=0.0)
            value = to_cache(value.to(tl.float32), v_scale, v_cache.dtype.element_ty)
            tl.store(v_cache + at + heads[:, None] * HEAD_DIM + feature[None, :], value, mask=mask & is_cached)
        _turn(k + token * k_token, k_head, k_out + token * num_kv_heads * HEAD_DIM, row, is_cached, k_scale,
              heads, is_head, cos, sin,
              HEAD_DIM, HALF, HALF_BLOCK, PASS_BLOCK, INTERLEAVED, WRITES)  # fmt: skip


def _run(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    table: torch.Tensor,
    interleaved: bool,
    section: Sequence[int] | None,
    cache: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, float, float] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads, half = k.shape[1], table.shape[1] // 2
    v, k_cache, v_cache, slots, k_scale, v_scale = cache or (k, k_out, k_out, positions, 1.0, 1.0)
    runs = section or [half]

    def run(config: Config) -> None:
        heads = min(config["HEADS"], power_of_two(max(num_q_heads, num_kv_heads)))
        q_blocks = ceil_div(num_q_heads, heads)
        launch(
            _rotary_kernel, (num_tokens, q_blocks + ceil_div(num_kv_heads, heads)),
            q, k, v, positions, table, q_out, k_out, k_cache, v_cache, slots, slots.shape[0],
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            num_q_heads, num_kv_heads, q_blocks, k_cache.shape[1], k_cache.stride(0), k_cache.stride(1),
            k_scale, v_scale,
            HEAD_DIM=head_dim, HALF=half, HALF_BLOCK=power_of_two(half),
            PASS_BLOCK=power_of_two(max(head_dim - 2 * half, 1)), V_BLOCK=power_of_two(head_dim),
            INTERLEAVED=interleaved, AXES=1 if section is None else 3, RUN_0=runs[0],
            RUN_1=runs[1] if len(runs) > 1 else 0, WRITES=cache is not None, HEADS=heads, **config.options,
        )  # fmt: skip

    key = str(q.dtype), num_q_heads, num_kv_heads, head_dim, cache is not None, size_class(num_tokens)
    TUNER.run(SPACE, key, run)
    return q_out, k_out


def why_not(
    positions: torch.Tensor, table: torch.Tensor, section: Sequence[int] | None, *heads: torch.Tensor
) -> str | None:
    """Why the kernel cannot rotate these, or None if it can."""
    if section is not None and len(section) > MAX_RUNS:
        return f"more than {MAX_RUNS} runs of pairs"
    if any(x.dim() != 3 or x.stride(2) != 1 for x in heads):
        return "heads whose features are not neighbours in memory"
    if table.dtype != torch.float32 or not (table.is_contiguous() and positions.is_contiguous()):
        return "a table or positions that are strided or of another dtype"
    if table.shape[1] == 0:
        return "nothing to rotate"
    return None


def rotary_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, interleaved: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::rotary_embedding`."""
    if (reason := why_not(positions, cos_sin_cache, None, q, k)) is not None:
        return decline("rotary_embedding", reason, q, k, positions, cos_sin_cache, interleaved)
    return _run(q, k, positions, cos_sin_cache, interleaved, None)


def mrope_embedding(
    q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin_cache: torch.Tensor, section: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::mrope_embedding`."""
    if (reason := why_not(positions, cos_sin_cache, section, q, k)) is not None:
        return decline("mrope_embedding", reason, q, k, positions, cos_sin_cache, section)
    return _run(q, k, positions, cos_sin_cache, False, section)


def rotary_and_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    interleaved: bool,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    section: Sequence[int] | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate as `rotary_embedding` (as `mrope_embedding` with a section) and write k and v where slots say.

    v [T', Hk, D], k_cache and v_cache [num_blocks, block_size, Hk, D] of one layout, slot_mapping [T] int32 with
    T <= T'; a slot of -1 is not written. An fp8 cache holds `k / k_scale` and `v / v_scale` -> the rotated (q, k).

    Raises:
        ValueError: heads, strides or a table that the kernel cannot take; fewer rows than slots.
    """
    reason = why_not(positions, cos_sin_cache, section, q, k, v)
    num_tokens = slot_mapping.shape[0]
    if k_cache.stride() != v_cache.stride() or k_cache.stride()[2:] != (k.shape[2], 1):
        reason = f"caches of strides {k_cache.stride()} and {v_cache.stride()}"
    if k.shape != v.shape or k_cache.shape[2:] != k.shape[1:] or len(k) < num_tokens or len(q) != len(k):
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v, k_cache))
        reason = f"q, k, v and caches of shapes {shapes} for {num_tokens} slots"
    if reason is not None:
        raise ValueError(f"cannot rotate and write {reason}")
    cache = v, k_cache, v_cache, slot_mapping, k_scale, v_scale
    return _run(q, k, positions, cos_sin_cache, interleaved, section, cache)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"rotary_embedding": rotary_embedding, "mrope_embedding": mrope_embedding}
