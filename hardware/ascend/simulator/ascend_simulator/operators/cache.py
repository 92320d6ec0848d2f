"""Writing keys and values into a paged cache."""

from __future__ import annotations

import torch

from ascend_simulator.rules import Ints, Tensor, Text, rule

PLAIN = ("", "Norm")
FRACTAL = "PA_NZ"
NO_COMPRESSION = ("None", "")


@rule(
    "aclnnScatterPaKvCache",
    source="Ascend/op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-npu_scatter_pa_kv_cache.md",
)
def scatter_pa_kv_cache(
    key: Tensor,
    key_cache: Tensor,
    slots: Tensor,
    value: Tensor,
    value_cache: Tensor,
    compress_lens: Tensor | None,
    compress_seq_offsets: Tensor | None,
    seq_lens: Tensor | None,
    cache_mode: Text,
    scatter_mode: Text,
    strides: Ints,
    offsets: Ints,
) -> None:
    """Row i of `key` and `value` [T, N, D] goes to slot i.

    A cache is [blocks, block_size, N, D], or [blocks, N * D / C, block_size, C] in mode PA_NZ.

    Raises:
        IndexError: a slot is not in the cache, which the document demands.
    """
    if key.dim() != 3 or scatter_mode not in NO_COMPRESSION or compress_lens is not None:
        raise ValueError("compressed caches are not modelled: keys and values are [tokens, heads, head size]")
    for rows, cache in ((key, key_cache), (value, value_cache)):
        _write(rows, cache, slots.long(), cache_mode)


@rule(
    "atb::ReshapeAndCache",
    source="ascend-transformer-boost/tests/apitest/kernelstest/mix/test_reshape_and_cache.py",
)
def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slots: Tensor,
    key_out: Tensor,
    value_out: Tensor,
) -> None:
    """Row i of `key` and `value` [T, N, D] goes to slot i of caches [blocks, block_size, N, D], if it is not negative.

    Raises:
        IndexError: a slot is beyond the cache.
    """
    kept = (slots >= 0).nonzero().flatten()
    for rows, cache in ((key, key_out), (value, value_out)):
        _write(rows[kept], cache, slots[kept].long(), "Norm")


def _write(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, mode: str) -> None:
    block_size = cache.shape[1] if mode in PLAIN else cache.shape[2]
    capacity = cache.shape[0] * block_size
    if not bool(((slots >= 0) & (slots < capacity)).all()):
        raise IndexError(f"slots {int(slots.min())} to {int(slots.max())} of a cache of {capacity}")
    block, place = slots // block_size, slots % block_size
    if mode in PLAIN:
        cache[block, place] = rows
    elif mode == FRACTAL:
        cache[block, :, place] = rows.flatten(1).unflatten(1, (cache.shape[1], cache.shape[3]))
    else:
        raise ValueError(f"cache_mode {mode!r} is none of Norm, PA_NZ")
