"""FlashInfer's latent attention: the arguments of its launch, and what the blocks of one launch compute.

Written from flashinfer 0.7.4: `attention/mla_params.cuh` and `attention/mla.cuh`. Blocks take pieces of work from the
schedule that `plan` wrote: a tile of rows (queries times heads, heads fastest) and a chunk of keys; then all of them
merge what was split.
"""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from collections.abc import Sequence
from ctypes import c_bool, c_float, c_uint32, c_void_p
from dataclasses import dataclass, field
from typing import Any

import torch

from cuda_simulator.arguments import Dtypes, FastDivisor, array, copy_of, integers
from cuda_simulator.softmax import LOG2E, attend, merge_partials

KERNEL = "BatchMLAPagedAttentionKernel"
TILE_ROWS = 64


class LatentParams(ctypes.Structure):
    """`MLAParams`."""

    _fields_ = (
        *((name, c_void_p) for name in ("q_nope", "q_pe", "ckv", "kpe")),
        *((name, c_void_p) for name in ("partial_o", "partial_lse", "final_o", "final_lse")),
        *((name, c_void_p) for name in ("q_indptr", "kv_indptr", "partial_indptr")),
        *((f"merge_packed_offset_{end}", c_void_p) for end in ("start", "end")),
        *((f"merge_partial_packed_offset_{end}", c_void_p) for end in ("start", "end")),
        ("merge_partial_stride", c_void_p),
        *((name, c_void_p) for name in ("kv_indices", "q_len", "kv_len", "q_start", "kv_start", "kv_end")),
        ("work_indptr", c_void_p),
        ("block_size", FastDivisor),
        ("num_heads", FastDivisor),
        *((f"{name}_stride_{axis}", c_uint32) for name in ("q_nope", "q_pe") for axis in ("n", "h")),
        *((f"{name}_stride_{axis}", c_uint32) for name in ("ckv", "kpe") for axis in ("page", "n")),
        *((f"o_stride_{axis}", c_uint32) for axis in ("n", "h")),
        ("sm_scale", c_float),
        ("ckv_scale", c_float),
        ("kpe_scale", c_float),
        ("ckv_scale_arr", c_void_p),
        ("return_lse_base_on_e", c_bool),
    )


def latent_launch(name: str, dtypes: Dtypes, grid: Sequence[int], arguments: Any) -> _Call:
    """The stand-in of a launch of `KERNEL`."""
    traits = re.search(r"KernelTraitsILb(\d)ELj\d+ELb\dELj(\d+)ELj(\d+)ELj64ELj(\d+)E", name)
    assert traits is not None, f"kernel traits in {name}"
    latent, rope, tile_keys = (int(traits[group]) for group in (2, 3, 4))
    params = copy_of(LatentParams, arguments[0])
    return _Call(params, dtypes, grid, latent, rope, tile_keys, is_causal=traits[1] == "1")


@dataclass(frozen=True)
class _Call:
    """A launch's arguments and template arguments."""

    params: LatentParams
    dtypes: Dtypes
    grid: Sequence[int]
    latent: int
    rope: int
    tile_keys: int
    is_causal: bool
    reads: Counter[int] = field(default_factory=Counter)

    def __call__(self) -> None:
        _latent(self, self.grid)

    @property
    def heads(self) -> int:
        return int(self.params.num_heads.value)

    def queries(self, first: int, count: int) -> torch.Tensor:
        """Rows `first` ... of the step's queries, both parts: [count, H, latent + rope] float32."""
        p, shape = self.params, (count, self.heads)
        nope_strides, rope_strides = (p.q_nope_stride_n, p.q_nope_stride_h, 1), (p.q_pe_stride_n, p.q_pe_stride_h, 1)
        nope = array(p.q_nope, (*shape, self.latent), self.dtypes.q, first * p.q_nope_stride_n, nope_strides)
        rope = array(p.q_pe, (*shape, self.rope), self.dtypes.q, first * p.q_pe_stride_n, rope_strides)
        return torch.cat((nope, rope), -1).float()

    def keys(self, page: int, first: int, last: int) -> torch.Tensor:
        """Keys `first` ... `last` - 1 of the request whose pages begin at `page`: [n, latent + rope] float32."""
        p, size = self.params, self.params.block_size.value
        rows = []
        for key in range(first, last):
            number = integers(p.kv_indices, page + key // size + 1)[page + key // size]
            if key in (first, key // size * size):
                self.reads[number] += 1
            latent, rope = number * p.ckv_stride_page, number * p.kpe_stride_page
            latent, rope = latent + key % size * p.ckv_stride_n, rope + key % size * p.kpe_stride_n
            parts = (p.ckv, self.latent, latent), (p.kpe, self.rope, rope)
            rows.append(torch.cat([array(data, (width,), self.dtypes.kv, at) for data, width, at in parts]))
        return torch.stack(rows).float() if rows else torch.empty(0, self.latent + self.rope)


def _latent(call: _Call, grid: Sequence[int]) -> None:
    work = integers(call.params.work_indptr, grid[1] + 1)
    for cluster in range(grid[1]):
        for index in range(work[cluster], work[cluster + 1]):
            _work(call, index, grid[0])
    for block in range(grid[0] * grid[1]):
        _merge(call, block)


def _work(call: _Call, index: int, num_tiles: int) -> None:
    """One piece of the schedule, shared by the blocks of a cluster."""
    p, heads = call.params, call.heads
    names = ("q_indptr", "kv_indptr", "partial_indptr", "q_len", "kv_len", "q_start", "kv_start", "kv_end")
    row, page, partial, q_len, kv_len, q_start, kv_start, kv_end = (
        integers(getattr(p, name), index + 1)[index] for name in names
    )
    bound = kv_end
    if call.is_causal:
        bound = min(kv_end, kv_len - q_len + (q_start + num_tiles * TILE_ROWS) // heads)
    num_iterations = -(-bound // call.tile_keys) - kv_start // call.tile_keys
    keys = torch.arange(kv_start, min(kv_end, kv_start + num_iterations * call.tile_keys))
    k = call.keys(page, kv_start, kv_start + len(keys)).unsqueeze(1)
    for tile in range(num_tiles):
        packed = range(q_start + tile * TILE_ROWS, min(q_start + (tile + 1) * TILE_ROWS, q_len * heads))
        if not packed:
            continue
        queries = torch.arange(packed[0] // heads, packed[-1] // heads + 1)
        scores = torch.einsum("nhd,sgd->ghns", call.queries(row + int(queries[0]), len(queries)), k) * p.sm_scale
        seen = torch.ones(len(queries), len(keys), dtype=torch.bool)
        if call.is_causal:
            seen = keys.unsqueeze(0) + q_len <= kv_len + queries.unsqueeze(1)
        out, lse = attend(scores, seen, k[..., : call.latent])
        for number, at in enumerate(packed, tile * TILE_ROWS):
            query, head = divmod(at, heads)
            found = out[query - int(queries[0]), 0, head], lse[query - int(queries[0]), 0, head]
            if partial == -1:
                _write(call, row + query, head, *found)
            else:
                array(p.partial_o, (call.latent,), call.dtypes.o, (partial + number) * call.latent).copy_(found[0])
                array(p.partial_lse, (1,), torch.float32, partial + number).copy_(found[1])


def _write(call: _Call, query: int, head: int, out: torch.Tensor, lse: torch.Tensor) -> None:
    """out [latent] and its log2-sum-exp, which is written where the launch says, to the base that it says."""
    p = call.params
    at = query * p.o_stride_n + head * p.o_stride_h
    array(p.final_o, (call.latent,), call.dtypes.o, at).copy_(out)
    if p.final_lse:
        sums = array(p.final_lse, (1,), torch.float32, query * call.heads + head)
        sums.copy_(lse / LOG2E if p.return_lse_base_on_e else lse)


def _merge(call: _Call, block: int) -> None:
    """`DevicePersistentMergeStates` of one block."""
    p = call.params
    names = ("merge_packed_offset", "merge_partial_packed_offset")
    bounds = [[integers(getattr(p, f"{name}_{end}"), block + 1)[block] for end in ("start", "end")] for name in names]
    stride = integers(p.merge_partial_stride, block + 1)[block]
    for number, at in enumerate(range(*bounds[0])):
        rows = list(range(bounds[1][0] + number, bounds[1][1], stride))
        parts = torch.stack([array(p.partial_o, (1, call.latent), call.dtypes.o, row * call.latent) for row in rows])
        weights = torch.stack([array(p.partial_lse, (1,), torch.float32, row) for row in rows])
        merged, lse = merge_partials(parts.float(), weights)
        _write(call, *divmod(at, call.heads), merged[0], lse[0])
