"""The arguments of FlashInfer's kernels as they lie in memory, and the memory that they point to.

Layouts of flashinfer 0.7.4: `paged_kv_t` of page.cuh, and the `Params` that `batch_decode_customize_config.jinja` and
`batch_prefill_customize_config.jinja` render for the default attention variant and the one with sinks.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from ctypes import c_bool, c_double, c_int32, c_int64, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

ParamsT = TypeVar("ParamsT", bound=ctypes.Structure)
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Dtypes:
    """Of queries, caches and outputs, which a compiled module's name tells and its kernels' do not."""

    q: torch.dtype
    kv: torch.dtype
    o: torch.dtype

    @classmethod
    def of(cls, library: str) -> Dtypes:
        """From a library's path; LookupError for dtypes that are not simulated."""
        names = [re.search(rf"_dtype_{kind}_([a-z0-9]+)_", library) for kind in ("q", "kv", "o")]
        with_sinks = re.search(r"_attention_sink_([a-z0-9]+)_([a-z0-9]+)_", library)
        found = [with_sinks[1], with_sinks[2], with_sinks[1]] if with_sinks else [match and match[1] for match in names]
        unknown = [name for name in found if name not in DTYPES]
        if unknown:
            raise LookupError(f"dtypes that are not simulated: {library}")
        return cls(*(DTYPES[str(name)] for name in found))


class FastDivisor(ctypes.Structure):
    """`uint_fastdiv`: four words that speed the division up, then the divisor."""

    _fields_ = (("words", c_uint32 * 4), ("value", c_uint32))


class PagedCache(ctypes.Structure):
    """`paged_kv_t<DType, int32_t>`."""

    _fields_ = (
        ("page_size", FastDivisor),
        ("num_heads", c_uint32),
        ("head_dim", c_uint32),
        ("batch_size", c_uint32),
        ("stride_page", c_uint32),
        ("stride_n", c_uint32),
        ("stride_h", c_uint32),
        ("v_stride_page", c_uint32),
        ("v_stride_n", c_uint32),
        ("v_stride_h", c_uint32),
        ("k_data", c_void_p),
        ("v_data", c_void_p),
        ("indices", c_void_p),
        ("indptr", c_void_p),
        ("last_page_len", c_void_p),
        ("rope_pos_offset", c_void_p),
    )

    def length(self, request: int) -> int:
        """`paged_kv_t::get_length`: tokens of a request."""
        bounds = integers(self.indptr, request + 2)
        count = bounds[request + 1] - bounds[request]
        if count == 0:
            return 0
        return (count - 1) * self.page_size.value + integers(self.last_page_len, request + 1)[request]


_SCALARS = (
    ("logits_soft_cap", c_double),
    ("sm_scale", c_double),
    ("rope_rcp_scale", c_double),
    ("rope_rcp_theta", c_double),
)


class DecodeParams(ctypes.Structure):
    """`Params` of batch decode."""

    _fields_ = (
        ("q", c_void_p),
        ("paged_kv", PagedCache),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("maybe_alibi_slopes", c_void_p),
        *_SCALARS,
        ("padded_batch_size", c_uint32),
        ("num_qo_heads", c_uint32),
        ("q_stride_n", c_int32),
        ("q_stride_h", c_int32),
        ("window_left", c_int32),
        ("enable_pdl", c_bool),
        ("request_indices", c_void_p),
        ("kv_tile_indices", c_void_p),
        ("o_indptr", c_void_p),
        ("kv_chunk_size_ptr", c_void_p),
        ("block_valid_mask", c_void_p),
        ("partition_kv", c_bool),
    )


_SCHEDULE = (
    ("request_indices", c_void_p),
    ("qo_tile_indices", c_void_p),
    ("kv_tile_indices", c_void_p),
    ("merge_indptr", c_void_p),
    ("o_indptr", c_void_p),
)
_ROWS = (
    ("max_total_num_rows", c_uint32),
    ("total_num_rows", c_void_p),
    ("padded_batch_size", c_uint32),
    ("partition_kv", c_bool),
)
_SCALE_STRIDES = tuple((f"scale_stride_{index}", c_uint32) for index in range(6))
VARIANTS: dict[str, tuple[tuple[str, type], ...]] = {
    "DefaultAttention": (
        *((f"maybe_{index}", c_void_p) for index in range(8)),
        *_SCALARS,
        ("token_pos_in_items_len", c_int64),
    ),
    "AttentionSink": (("sink", c_void_p), ("sm_scale", c_double)),
}
"""What each variant adds to the arguments of a prefill."""


def paged_params(variant: str) -> type[ctypes.Structure]:
    """`PagedParams` of batch prefill."""
    fields = (
        ("q", c_void_p),
        ("paged_kv", PagedCache),
        ("q_indptr", c_void_p),
        ("o", c_void_p),
        ("lse", c_void_p),
        ("group_size", FastDivisor),
        *VARIANTS[variant],
        ("num_qo_heads", c_uint32),
        ("q_stride_n", c_int32),
        ("q_stride_h", c_int32),
        *_SCALE_STRIDES,
        ("window_left", c_int32),
        *_SCHEDULE,
        ("block_valid_mask", c_void_p),
        ("kv_chunk_size_ptr", c_void_p),
        *_ROWS,
    )
    return type("PagedParams", (ctypes.Structure,), {"_fields_": fields})


def ragged_params(variant: str) -> type[ctypes.Structure]:
    """`RaggedParams` of batch prefill."""
    fields = (
        *((name, c_void_p) for name in ("q", "k", "v", "q_indptr", "kv_indptr", "o", "lse")),
        ("group_size", FastDivisor),
        *VARIANTS[variant],
        ("num_qo_heads", c_uint32),
        ("num_kv_heads", c_uint32),
        *((f"{name}_stride_{axis}", c_uint32) for name in "qkv" for axis in "nh"),
        *_SCALE_STRIDES,
        ("window_left", c_int32),
        *_SCHEDULE,
        ("kv_chunk_size_ptr", c_void_p),
        ("block_valid_mask", c_void_p),
        *_ROWS,
    )
    return type("RaggedParams", (ctypes.Structure,), {"_fields_": fields})


def copy_of(kind: type[ParamsT], address: int) -> ParamsT:
    """The structure at `address`, by value."""
    return kind.from_buffer_copy(ctypes.string_at(address, ctypes.sizeof(kind)))


def array(
    address: int,
    shape: Sequence[int],
    dtype: torch.dtype,
    offset: int = 0,
    strides: Sequence[int] | None = None,
) -> torch.Tensor:
    """A CPU tensor over memory that somebody else owns; offset and strides count elements."""
    strides = tuple(strides) if strides is not None else _contiguous(shape)
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    if extent <= 0 or 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype)
    bytes_ = (ctypes.c_char * (extent * dtype.itemsize)).from_address(address + offset * dtype.itemsize)
    return torch.frombuffer(bytes_, dtype=dtype).as_strided(tuple(shape), strides)


def integers(address: int, count: int) -> Any:
    """The first `count` int32 values at an address."""
    return (c_int32 * count).from_address(address)


def page_numbers(cache: PagedCache, request: int, first: int, last: int) -> list[int]:
    """The pages in which tokens `first` ... `last` - 1 of a request lie."""
    size = cache.page_size.value
    begin = integers(cache.indptr, request + 1)[request]
    wanted = range(first // size, -(-last // size)) if last > first else range(0)
    return [integers(cache.indices, begin + index + 1)[begin + index] for index in wanted]


def pages(
    cache: PagedCache, request: int, first: int, last: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of tokens `first` ... `last` - 1 of a request: [n, num_heads, head_dim] each."""
    size, numbers = cache.page_size.value, page_numbers(cache, request, first, last)
    shape = (size, cache.num_heads, cache.head_dim)
    sides = []
    for data, page, token, head in (
        (cache.k_data, cache.stride_page, cache.stride_n, cache.stride_h),
        (cache.v_data, cache.v_stride_page, cache.v_stride_n, cache.v_stride_h),
    ):
        found = [array(data, shape, dtype, number * page, (token, head, 1)) for number in numbers]
        rows = torch.cat(found) if found else torch.empty(0, *shape[1:], dtype=dtype)
        skipped = first - (first // size) * size
        sides.append(rows[skipped : skipped + max(last - first, 0)])
    return sides[0], sides[1]


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
