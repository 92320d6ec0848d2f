"""FlashInfer's decode and prefill: what the blocks of one launch compute, by the schedule that `plan` wrote.

Written from flashinfer 0.7.4: `attention/decode.cuh`, `attention/prefill.cuh`, `attention/variants.cuh` and the variant
with sinks of `jit/attention/variants.py`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from cuda_simulator.arguments import (
    DecodeParams,
    Dtypes,
    array,
    copy_of,
    integers,
    page_numbers,
    paged_params,
    pages,
    ragged_params,
)
from cuda_simulator.softmax import attend
from cuda_simulator.torch_cuda import SimulatedFault

DECODE_KERNELS = ("BatchDecodeWithPagedKVCacheKernel",)
RAGGED_KERNEL = "BatchPrefillWithRaggedKVCacheKernel"
PREFILL_KERNELS = ("BatchPrefillWithPagedKVCacheKernel", RAGGED_KERNEL)
NOT_CAUSAL, CAUSAL = 0, 1


def decode_launch(name: str, dtypes: Dtypes, grid: Sequence[int], arguments: Any) -> _Decode:
    """The stand-in of a decode's launch."""
    return _Decode(copy_of(DecodeParams, arguments[0]), _Variant.of(name, dtypes), grid)


def prefill_launch(name: str, dtypes: Dtypes, grid: Sequence[int], arguments: Any) -> _Prefill:
    """The stand-in of a prefill's launch, from pages or from rows."""
    variant = _Variant.of(name, dtypes)
    traits = re.search(r"KernelTraitsILNS_8MaskModeE(\d)ELj(\d+)ELj\d+ELj\d+ELj\d+ELj(\d+)E", name)
    assert traits is not None, f"kernel traits in {name}"
    mask_mode, tile, num_mma_d = (int(traits[group]) for group in (1, 2, 3))
    is_ragged = RAGGED_KERNEL in name
    kind = ragged_params(variant.name) if is_ragged else paged_params(variant.name)
    if mask_mode not in (NOT_CAUSAL, CAUSAL):
        raise SimulatedFault(f"a mask that is not simulated: {name}")
    params = copy_of(kind, arguments[0])
    return _Prefill(params, variant, grid, tile, num_mma_d * 16, mask_mode == CAUSAL, is_ragged)


@dataclass(frozen=True)
class _Variant:
    """The attention variant with its template arguments, and the dtypes of its tensors."""

    name: str
    dtypes: Dtypes
    has_window: bool
    has_soft_cap: bool

    @classmethod
    def of(cls, name: str, dtypes: Dtypes) -> _Variant:
        if "AttentionSink" in name:
            # Its mask has the window in any case.
            return cls("AttentionSink", dtypes, has_window=True, has_soft_cap=False)
        found = re.search(r"DefaultAttentionILb(\d)ELb(\d)ELb(\d)ELb(\d)E", name)
        if found is None or found[1] == "1" or found[4] == "1":
            raise SimulatedFault(f"an attention variant that is not simulated: {name}")
        return cls("DefaultAttention", dtypes, found[2] == "1", found[3] == "1")

    def scores(self, params: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """q [n, Hk, G, D], k [s, Hk, D] -> [Hk, G, n, s] in natural units."""
        scores = torch.einsum("nhgd,shd->hgns", q.float(), k.float()) * params.sm_scale
        if self.has_soft_cap:
            scores = params.logits_soft_cap * torch.tanh(scores / params.logits_soft_cap)
        return scores

    def sinks(self, params: Any, num_kv_heads: int, group: int) -> torch.Tensor | None:
        """[Hk, G] float32, if the variant has any."""
        if self.name != "AttentionSink":
            return None
        return array(params.sink, (num_kv_heads, group), torch.float32)

    def sees(self, params: Any, query: torch.Tensor, key: torch.Tensor, qo_len: int, kv_len: int) -> torch.Tensor:
        """Which keys the window leaves; query [n], key [s] -> [n, s]."""
        window = params.window_left if params.window_left >= 0 else kv_len
        if not self.has_window:
            return torch.ones(len(query), len(key), dtype=torch.bool)
        return key.unsqueeze(0) + qo_len + window >= kv_len + query.unsqueeze(1)


def _is_valid(params: Any, block: int) -> bool:
    return not params.block_valid_mask or bool(array(params.block_valid_mask, (1 + block,), torch.bool)[block])


@dataclass(frozen=True)
class _Decode:
    """One launch: a block per entry of the schedule and KV head; each writes row `block` of its output."""

    params: DecodeParams
    variant: _Variant
    grid: Sequence[int]
    is_causal: bool = True
    reads: Counter[int] = field(default_factory=Counter)

    def __call__(self) -> None:
        for block in range(self.grid[0]):
            if _is_valid(self.params, block):
                self._block(block)

    def _block(self, block: int) -> None:
        params, variant = self.params, self.variant
        cache, heads, dtypes = params.paged_kv, params.num_qo_heads, variant.dtypes
        group = heads // cache.num_heads
        request = integers(params.request_indices, block + 1)[block]
        kv_len = cache.length(request)
        first, last = 0, kv_len
        if params.partition_kv:
            chunk = integers(params.kv_chunk_size_ptr, 1)[0]
            first = integers(params.kv_tile_indices, block + 1)[block] * chunk
            last = min(first + chunk, kv_len)
        self.reads.update(page_numbers(cache, request, first, last))
        k, v = pages(cache, request, first, last, dtypes.kv)
        q = array(params.q, (heads, cache.head_dim), dtypes.q, request * params.q_stride_n)
        keys = torch.arange(first, last)
        seen = variant.sees(params, torch.zeros(1, dtype=torch.int64), keys, 1, kv_len)
        q = q.unflatten(0, (cache.num_heads, group)).unsqueeze(0)
        out, lse = attend(variant.scores(params, q, k), seen, v)
        array(params.o, (heads, cache.head_dim), dtypes.o, block * heads * cache.head_dim).copy_(out.flatten(1, 2)[0])
        if params.lse:
            array(params.lse, (heads,), torch.float32, block * heads).copy_(lse.flatten())


@dataclass(frozen=True)
class _Prefill:
    """One launch: a block per tile of queries, chunk of keys and KV head; tiles count queries times a group's heads."""

    params: Any
    variant: _Variant
    grid: Sequence[int]
    tile: int
    dim: int
    is_causal: bool
    is_ragged: bool
    reads: Counter[int] = field(default_factory=Counter)

    def __call__(self) -> None:
        for block in range(self.grid[0]):
            if _is_valid(self.params, block):
                self._block(block, self.grid[2])

    def _kv_len(self, request: int) -> int:
        if not self.is_ragged:
            return int(self.params.paged_kv.length(request))
        bounds = integers(self.params.kv_indptr, request + 2)
        return int(bounds[request + 1] - bounds[request])

    def _keys(self, request: int, first: int, last: int, num_kv_heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values `first` ... `last` - 1 of a request: [n, num_kv_heads, dim] each."""
        params, dtype = self.params, self.variant.dtypes.kv
        if not self.is_ragged:
            self.reads.update(page_numbers(params.paged_kv, request, first, last))
            return pages(params.paged_kv, request, first, last, dtype)
        row, shape = integers(params.kv_indptr, request + 1)[request] + first, (last - first, num_kv_heads, self.dim)
        k_strides, v_strides = (params.k_stride_n, params.k_stride_h, 1), (params.v_stride_n, params.v_stride_h, 1)
        k = array(params.k, shape, dtype, row * params.k_stride_n, k_strides)
        return k, array(params.v, shape, dtype, row * params.v_stride_n, v_strides)

    def _block(self, block: int, num_kv_heads: int) -> None:
        params, variant, tile, dim = self.params, self.variant, self.tile, self.dim
        group = params.group_size.value
        heads = num_kv_heads * group
        request, query_tile, chunk_index = (
            integers(pointer, block + 1)[block]
            for pointer in (params.request_indices, params.qo_tile_indices, params.kv_tile_indices)
        )
        bounds = integers(params.q_indptr, request + 2)
        qo_len, kv_len = bounds[request + 1] - bounds[request], self._kv_len(request)
        window = params.window_left if params.window_left >= 0 else kv_len
        start = max(0, kv_len + query_tile * tile // group - qo_len - window)
        chunk = integers(params.kv_chunk_size_ptr, 1)[0]
        first, last, num_chunks = start, kv_len, 1
        if params.partition_kv:
            first = min(chunk_index * chunk + start, kv_len)
            last = min((chunk_index + 1) * chunk + start, kv_len)
            num_chunks = -(-min(max(kv_len, 1), window + tile) // chunk)
        # Rows of the tile that are not whole queries are shared with the next tile: by packed index, heads fastest.
        packed = torch.arange(query_tile * tile, min((query_tile + 1) * tile, qo_len * group))
        if not len(packed):
            return
        queries = torch.arange(int(packed[0]) // group, int(packed[-1]) // group + 1)
        first_row = (bounds[request] + int(queries[0])) * params.q_stride_n
        strides = (params.q_stride_n, params.q_stride_h, 1)
        q = array(params.q, (len(queries), heads, dim), variant.dtypes.q, first_row, strides)
        k, v = self._keys(request, first, last, num_kv_heads)
        keys = torch.arange(first, last)
        seen = variant.sees(params, queries, keys, qo_len, kv_len)
        if self.is_causal:
            seen &= keys.unsqueeze(0) + qo_len <= kv_len + queries.unsqueeze(1)
        # A sink counts once per query: with the first chunk of its keys.
        sinks = variant.sinks(params, num_kv_heads, group) if chunk_index == 0 else None
        out, lse = attend(variant.scores(params, q.unflatten(1, (num_kv_heads, group)), k), seen, v, sinks)
        row = integers(params.o_indptr, request + 1)[request]
        for index in packed.tolist():
            query, member = divmod(index, group)
            local = query - int(queries[0])
            at = row + query * num_chunks + (chunk_index if params.partition_kv else 0)
            shape, strides = (num_kv_heads, dim), (group * dim, 1)
            target = array(params.o, shape, variant.dtypes.o, (at * heads + member) * dim, strides)
            target.copy_(out[local, :, member])
            if params.lse:
                sums = array(params.lse, (num_kv_heads,), torch.float32, at * heads + member, (group,))
                sums.copy_(lse[local, :, member])
