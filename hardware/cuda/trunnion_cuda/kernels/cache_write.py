"""Writes a step's new keys and values, or latents, where the slots of a paged cache say.

For T tokens of F features of b bytes in each of two caches: `4 T F b` bytes and no arithmetic: memory bandwidth is the
limit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.rotary_embedding import to_cache

ARCHITECTURES = EVERY_ARCHITECTURE
"""An fp8 cache needs a later one than sm_80."""
BLOCK = 1024


@triton.jit
def _write_kernel(
    first, second, first_cache, second_cache, slots, first_token, second_token, first_size, second_size, block_size,
    cache_block, cache_token, first_scale, second_scale, BLOCK: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    feature = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        at = (slot // block_size) * cache_block + (slot % block_size) * cache_token + feature
        of_first = feature < first_size
        row = tl.load(first + token * first_token + feature, mask=of_first, other=0.0).to(tl.float32)
        tl.store(first_cache + at, to_cache(row, first_scale, first_cache.dtype.element_ty), mask=of_first)
        of_second = feature < second_size
        row = tl.load(second + token * second_token + feature, mask=of_second, other=0.0).to(tl.float32)
        tl.store(second_cache + at, to_cache(row, second_scale, second_cache.dtype.element_ty), mask=of_second)


def write_cache(
    first: torch.Tensor,
    second: torch.Tensor,
    first_cache: torch.Tensor,
    second_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    first_scale: float = 1.0,
    second_scale: float = 1.0,
) -> None:
    """Write rows of `first` and `second` [T', ...] into two caches [num_blocks, block_size, ...] of equal strides.

    slot_mapping [T] int32 with T <= T'; a slot of -1 is not written. An fp8 cache holds rows divided by their scale.
    The two may be parts of one cache: views of its rows. Fit for capture.

    Raises:
        ValueError: features of a row, or of a cache's row, are not neighbours in memory; rows of another size than the
            cache's, or fewer than slots.
    """
    for name, rows in (("first", first), ("second", second), ("first_cache", first_cache[0])):
        if not rows[:1].is_contiguous():
            raise ValueError(f"cannot write {name}: its rows have strides {rows.stride()}")
    if first_cache.stride()[:2] != second_cache.stride()[:2]:
        raise ValueError(f"caches of strides {first_cache.stride()} and {second_cache.stride()}")
    num_tokens = slot_mapping.shape[0]
    sizes = first.shape[1:].numel(), second.shape[1:].numel()
    kept = first_cache.shape[2:].numel(), second_cache.shape[2:].numel()
    if sizes != kept or min(len(first), len(second)) < num_tokens:
        given = f"{len(first)} rows of {sizes[0]} and {len(second)} of {sizes[1]} features"
        raise ValueError(f"{given} do not go into {num_tokens} slots of {kept[0]} and {kept[1]}")
    block = min(BLOCK, power_of_two(max(sizes)))
    launch(
        _write_kernel, (num_tokens, ceil_div(max(sizes), block)),
        first, second, first_cache, second_cache, slot_mapping, first.stride(0), second.stride(0), *sizes,
        first_cache.shape[1], first_cache.stride(0), first_cache.stride(1), first_scale, second_scale, BLOCK=block,
    )  # fmt: skip
