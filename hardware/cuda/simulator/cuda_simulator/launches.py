"""What launches of FlashInfer's kernels compute: attention in torch, from the arguments that each launch carries.

Every block of a grid does what its counterpart does on a device, by the schedule that `plan` wrote: the same tiles of
queries and chunks of keys, partial results and their merge. Written from flashinfer 0.7.4: `attention/decode.cuh`,
`attention/prefill.cuh`, `attention/cascade.cuh`.
"""

from __future__ import annotations

import ctypes
import re
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cuda_simulator.arguments import DecodeParams, PagedParams, array, copy_of, integers, pages
from cuda_simulator.torch_cuda import SimulatedFault, Simulation

SUCCESS, FAILURE = 0, 999
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
CAUSAL = 1
LOG2E = 1.4426950408889634


def run_launch(simulation: Simulation, name: bytes, library: bytes, grid: Any, arguments: Any) -> int:
    """Called by the runtime for each launch; the code goes back to the library that launched."""
    try:
        sizes = [grid[axis] for axis in range(3)]
        simulation.launch(_kernel(name.decode(), _dtype(library.decode()), sizes, arguments))
    except Exception:
        traceback.print_exc()
        return FAILURE
    return SUCCESS


def _kernel(name: str, dtype: torch.dtype, grid: Sequence[int], arguments: Any) -> Callable[[], None]:
    """The stand-in of a launch, with a copy of its arguments: they are gone when a graph is replayed."""
    if "BatchDecodeWithPagedKVCacheKernel" in name:
        decode = copy_of(DecodeParams, arguments[0])
        variant = _Variant.of(name, dtype)
        return lambda: _decode(decode, variant, grid)
    if "BatchPrefillWithPagedKVCacheKernel" in name:
        prefill = copy_of(PagedParams, arguments[0])
        variant = _Variant.of(name, dtype)
        traits = re.search(r"KernelTraitsILNS_8MaskModeE(\d)ELj(\d+)E", name)
        assert traits is not None, f"kernel traits in {name}"
        mask_mode, tile = int(traits[1]), int(traits[2])
        return lambda: _prefill(prefill, variant, grid, tile, is_causal=mask_mode == CAUSAL)
    if "PersistentVariableLengthMergeStatesKernel" in name:
        return _merge_of(name, dtype, arguments)
    raise SimulatedFault(f"a launch that is not simulated: {name}")


@dataclass(frozen=True)
class _Variant:
    """The template arguments of `DefaultAttention`, and the dtype of its tensors."""

    dtype: torch.dtype
    has_window: bool
    has_soft_cap: bool

    @classmethod
    def of(cls, name: str, dtype: torch.dtype) -> _Variant:
        found = re.search(r"DefaultAttentionILb(\d)ELb(\d)ELb(\d)ELb(\d)E", name)
        if found is None or found[1] == "1" or found[4] == "1":
            raise SimulatedFault(f"an attention variant that is not simulated: {name}")
        return cls(dtype, found[2] == "1", found[3] == "1")

    def scores(self, params: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """q [n, Hk, G, D], k [s, Hk, D] -> [Hk, G, n, s] in natural units."""
        scores = torch.einsum("nhgd,shd->hgns", q.float(), k.float()) * params.sm_scale
        if self.has_soft_cap:
            scores = params.logits_soft_cap * torch.tanh(scores / params.logits_soft_cap)
        return scores

    def sees(self, params: Any, query: torch.Tensor, key: torch.Tensor, qo_len: int, kv_len: int) -> torch.Tensor:
        """Which keys the window leaves; query [n], key [s] -> [n, s]."""
        window = params.window_left if params.window_left >= 0 else kv_len
        if not self.has_window:
            return torch.ones(len(query), len(key), dtype=torch.bool)
        return key.unsqueeze(0) + qo_len + window >= kv_len + query.unsqueeze(1)


def _dtype(library: str) -> torch.dtype:
    """The dtype of queries, caches and outputs, which a compiled module's name tells and its kernels' do not."""
    found = {kind: re.search(rf"_dtype_{kind}_([a-z0-9]+)_", library) for kind in ("q", "kv", "o")}
    names = {match[1] for match in found.values() if match is not None}
    if len(names) != 1 or not names <= set(DTYPES):
        raise SimulatedFault(f"dtypes that are not simulated: {library}")
    return DTYPES[names.pop()]


def _attend(scores: torch.Tensor, seen: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """scores [Hk, G, n, s], seen [n, s], v [s, Hk, D] -> output [n, Hk, G, D] and log2-sum-exp [n, Hk, G].

    What is masked has weight zero, and zero times NaN is NaN, as on a device.
    """
    scores = torch.where(seen, scores, float("-inf"))
    top = scores.amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    weights = torch.where(seen, torch.exp(scores - torch.where(top.isinf(), 0.0, top)), 0.0)
    total = weights.sum(-1)
    out = torch.einsum("hgns,shd->nhgd", weights, v.float())
    total_by_row = total.permute(2, 0, 1)
    out = torch.where(total_by_row.unsqueeze(-1) > 0, out / total_by_row.unsqueeze(-1), out * 0)
    return out, (torch.log2(total) + top.squeeze(-1) * LOG2E).permute(2, 0, 1)


def _is_valid(params: Any, block: int) -> bool:
    return not params.block_valid_mask or bool(array(params.block_valid_mask, (1 + block,), torch.bool)[block])


def _decode(params: DecodeParams, variant: _Variant, grid: Sequence[int]) -> None:
    """One block per entry of the schedule and KV head; each writes row `block` of its output."""
    cache, heads = params.paged_kv, params.num_qo_heads
    group = heads // cache.num_heads
    for block in range(grid[0]):
        if not _is_valid(params, block):
            continue
        request = integers(params.request_indices, block + 1)[block]
        kv_len = cache.length(request)
        first, last = 0, kv_len
        if params.partition_kv:
            chunk = integers(params.kv_chunk_size_ptr, 1)[0]
            first = integers(params.kv_tile_indices, block + 1)[block] * chunk
            last = min(first + chunk, kv_len)
        k, v = pages(cache, request, first, last, variant.dtype)
        q = array(params.q, (heads, cache.head_dim), variant.dtype, request * params.q_stride_n)
        keys = torch.arange(first, last)
        seen = variant.sees(params, torch.zeros(1, dtype=torch.int64), keys, 1, kv_len)
        q = q.unflatten(0, (cache.num_heads, group)).unsqueeze(0)
        out, lse = _attend(variant.scores(params, q, k), seen, v)
        array(params.o, (heads, cache.head_dim), variant.dtype, block * heads * cache.head_dim).copy_(
            out.flatten(1, 2)[0]
        )
        if params.lse:
            array(params.lse, (heads,), torch.float32, block * heads).copy_(lse.flatten())


def _prefill(params: PagedParams, variant: _Variant, grid: Sequence[int], tile: int, *, is_causal: bool) -> None:
    """One block per tile of queries, chunk of keys and KV head; a tile counts queries times heads of the group."""
    for block in range(grid[0]):
        if _is_valid(params, block):
            _prefill_block(params, variant, block, tile, grid[2], is_causal=is_causal)


def _prefill_block(
    params: PagedParams, variant: _Variant, block: int, tile: int, num_kv_heads: int, *, is_causal: bool
) -> None:
    cache = params.paged_kv
    group, dim = params.group_size.value, cache.head_dim
    heads = num_kv_heads * group
    request, query_tile, chunk_index = (
        integers(pointer, block + 1)[block]
        for pointer in (params.request_indices, params.qo_tile_indices, params.kv_tile_indices)
    )
    bounds = integers(params.q_indptr, request + 2)
    qo_len, kv_len = bounds[request + 1] - bounds[request], cache.length(request)
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
    q = array(params.q, (len(queries), heads, dim), variant.dtype, first_row, strides)
    k, v = pages(cache, request, first, last, variant.dtype)
    keys = torch.arange(first, last)
    seen = variant.sees(params, queries, keys, qo_len, kv_len)
    if is_causal:
        seen &= keys.unsqueeze(0) + qo_len <= kv_len + queries.unsqueeze(1)
    out, lse = _attend(variant.scores(params, q.unflatten(1, (num_kv_heads, group)), k), seen, v)
    row = integers(params.o_indptr, request + 1)[request]
    for index in packed.tolist():
        query, member = divmod(index, group)
        local = query - int(queries[0])
        at = row + query * num_chunks + (chunk_index if params.partition_kv else 0)
        target = array(params.o, (num_kv_heads, dim), variant.dtype, (at * heads + member) * dim, (group * dim, 1))
        target.copy_(out[local, :, member])
        if params.lse:
            sums = array(params.lse, (num_kv_heads,), torch.float32, at * heads + member, (group,))
            sums.copy_(lse[local, :, member])


def _merge_of(name: str, dtype: torch.dtype, arguments: Any) -> Callable[[], None]:
    """Arguments: V, S, indptr, v_merged, s_merged, max_seq_len, seq_len_ptr, num_heads."""
    sizes = re.search(r"KernelILj(\d+)ELj(\d+)E", name)
    assert sizes is not None, f"template arguments in {name}"
    dim = int(sizes[1]) * int(sizes[2])
    kinds = (ctypes.c_void_p,) * 5 + (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint32)
    v, s, indptr, merged, merged_lse, rows, rows_pointer, heads = (
        kind.from_address(arguments[index]).value or 0 for index, kind in enumerate(kinds)
    )
    return lambda: _merge(v, s, indptr, merged, merged_lse, rows, rows_pointer, heads, dim, dtype)


def _merge(
    v: int,
    s: int,
    indptr: int,
    merged: int,
    merged_lse: int,
    rows: int,
    rows_pointer: int,
    heads: int,
    dim: int,
    dtype: torch.dtype,
) -> None:
    if rows_pointer:
        rows = integers(rows_pointer, 1)[0]
    bounds = integers(indptr, rows + 1)
    for row in range(rows):
        first, count = bounds[row], bounds[row + 1] - bounds[row]
        target = array(merged, (heads, dim), dtype, row * heads * dim)
        if count == 0:
            target.zero_()
            continue
        parts = array(v, (count, heads, dim), dtype, first * heads * dim).float()
        weights = array(s, (count, heads), torch.float32, first * heads)
        top = weights.amax(0)
        shares = torch.exp2(weights - torch.where(top.isinf(), 0.0, top))
        total = shares.sum(0)
        mean = (parts * shares.unsqueeze(-1)).sum(0) / total.unsqueeze(-1)
        target.copy_(torch.where(total.unsqueeze(-1) > 0, mean, 0))
        if merged_lse:
            array(merged_lse, (heads,), torch.float32, row * heads).copy_(torch.log2(total) + top)
