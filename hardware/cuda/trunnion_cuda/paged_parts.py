"""Which requests of a step go through this package's attention kernels together, and among how many programs each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trunnion.contract import GroupTensors, Limits
from trunnion.interfaces.attention import StepInputs
from trunnion_cuda.kernels.paged_attention import PagedKeys

EXAMPLE_KEYS = 2048
"""Of a decode that kernels are timed with."""
Splits = Callable[[int, int, int], int]
"""(requests, tokens of each, most keys of one) -> programs that share a request's keys."""


@dataclass(frozen=True, slots=True)
class Part:
    """Requests that one call of a kernel serves."""

    keys: PagedKeys
    rows: slice
    splits: int


def parts_of(step: StepInputs, group: GroupTensors, block_size: int, splits: Splits) -> list[Part]:
    """Uniform decodes go through the kernel together, and so does the rest; a full graph has decodes only.

    group: the device's. Lengths, tables and slots are read on the device, so that upper bounds of lengths will do.
    """
    assert group.slot_mapping is not None and group.block_table is not None
    if step.in_full_graph:
        count, longest = step.device.seq_lens.shape[0], group.block_table.shape[1] * block_size
        query_len = group.slot_mapping.shape[0] // count
        keys = _keys(step, group, slice(0, count), query_len, is_uniform=True)
        return [Part(keys, slice(0, count * query_len), splits(count, query_len, longest))]
    counts, parts = step.counts, []
    if counts.num_decodes:
        count, query_len = counts.num_decodes, counts.decode_query_len
        keys = _keys(step, group, slice(0, count), query_len, is_uniform=True)
        parts.append(Part(keys, slice(0, count * query_len), splits(count, query_len, counts.max_seq_len)))
    if counts.num_reqs > counts.num_decodes:
        requests = slice(counts.num_decodes, counts.num_reqs)
        keys = _keys(step, group, requests, counts.max_query_len, is_uniform=False)
        parts.append(Part(keys, slice(0, counts.num_tokens), splits=1))
    return parts


def example_decodes(limits: Limits, cache: torch.Tensor, count: int, query_len: int, splits: Splits) -> Part:
    """A full graph's decodes of `EXAMPLE_KEYS` keys, as far as the limits go, wherever they lie in the cache."""
    width = -(-limits.max_model_len // cache.shape[1])
    num_keys = min(max(EXAMPLE_KEYS, query_len), limits.max_model_len)
    keys = _example_keys(cache, count, width, query_len, num_keys, None)
    return Part(keys, slice(0, count * query_len), splits(count, query_len, width * cache.shape[1]))


def example_prompt(limits: Limits, cache: torch.Tensor, num_tokens: int) -> Part:
    """One prompt without cached tokens, of no more than a request may have."""
    num_tokens = min(num_tokens, limits.max_model_len)
    starts = torch.tensor([0, num_tokens], dtype=torch.int32, device=cache.device)
    width = -(-limits.max_model_len // cache.shape[1])
    return Part(_example_keys(cache, 1, width, num_tokens, num_tokens, starts), slice(0, num_tokens), splits=1)


def _keys(step: StepInputs, group: GroupTensors, requests: slice, max_query_len: int, *, is_uniform: bool) -> PagedKeys:
    assert group.block_table is not None and group.kv_start is not None
    bounds = slice(requests.start, requests.stop + 1)
    return PagedKeys(
        block_table=group.block_table[requests],
        seq_lens=step.device.seq_lens[requests],
        query_start_loc=None if is_uniform else step.device.query_start_loc[bounds],
        max_query_len=max_query_len,
        kv_start=group.kv_start[requests],
        slot_mapping=group.slot_mapping,
    )


def _example_keys(
    cache: torch.Tensor, count: int, width: int, query_len: int, num_keys: int, starts: torch.Tensor | None
) -> PagedKeys:
    blocks = torch.arange(count * width, dtype=torch.int32, device=cache.device) % cache.shape[0]
    return PagedKeys(
        block_table=blocks.view(count, width),
        seq_lens=torch.full((count,), num_keys, dtype=torch.int32, device=cache.device),
        query_start_loc=starts,
        max_query_len=query_len,
        kv_start=torch.zeros(count, dtype=torch.int32, device=cache.device),
        slot_mapping=torch.zeros(count * query_len, dtype=torch.int32, device=cache.device),
    )
