"""How a group writes its caches, and rotates on the way: by one launch of this package's kernels, or by torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Protocol

import torch

from trunnion.interfaces.attention import Rotation
from trunnion.layers.rotary_embedding import rotate
from trunnion.reference.attention import to_cache
from trunnion.reference.captured import write_rows
from trunnion_cuda.environment import why_no_kernels
from trunnion_cuda.kernels.launch import FLOAT8_CAPABILITY


class CacheWrite(Protocol):
    """Writes a step's rows where the slots say; fit for capture."""

    def __call__(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        first_cache: torch.Tensor,
        second_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
        *,
        first_scale: float = 1.0,
        second_scale: float = 1.0,
    ) -> None:
        """Write rows of `first` and `second` [T', ...] into two caches [num_blocks, block_size, ...].

        slot_mapping [T] int32 with T <= T'; a slot of -1 is not written. Caches of another dtype than the rows hold
        them divided by their scale and cut to its range. The two may be parts of one cache: views of its rows.
        """
        ...


def cache_write(stored_dtype: torch.dtype) -> CacheWrite:
    """The one that can run here, for caches of this dtype."""
    if _has_kernels(stored_dtype):
        # Imports Triton, which may be absent.
        from trunnion_cuda.kernels.cache_write import write_cache

        return write_cache
    return write_by_operators


class RotatingWrite:
    """Rotates queries and keys and writes keys and values of a layer; fit for capture."""

    def __init__(self, stored_dtype: torch.dtype) -> None:
        self._write = cache_write(stored_dtype)
        self._fused: ModuleType | None = None
        if _has_kernels(stored_dtype):
            # Imports Triton, which may be absent.
            from trunnion_cuda.kernels import rotary_embedding

            self._fused = rotary_embedding

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        rotation: Rotation | None,
        cache: Mapping[str, torch.Tensor],
        slot_mapping: torch.Tensor,
        scales: tuple[float, float],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v [T', Hk, D] into `k_cache` and `v_cache` as `CacheWrite` does -> q and k, rotated if asked."""
        k_cache, v_cache = cache["k_cache"], cache["v_cache"]
        k_scale, v_scale = scales
        if rotation is not None and self._fused is not None:
            positions, table, interleaved, runs = rotation
            section = runs or None
            if self._fused.why_not(positions, table, section, q, k, v) is None:
                where = (k_cache, v_cache, slot_mapping)
                return self._fused.rotary_and_write(
                    q, k, v, positions, table, interleaved, *where, section=section, k_scale=k_scale, v_scale=v_scale
                )
        if rotation is not None:
            # Operators that say themselves where they run, and why.
            q, k = rotate(q, k, rotation)
        self._write(k, v, k_cache, v_cache, slot_mapping, first_scale=k_scale, second_scale=v_scale)
        return q, k


def _has_kernels(stored_dtype: torch.dtype) -> bool:
    has_conversion = stored_dtype != torch.float8_e4m3fn or torch.cuda.get_device_capability() >= FLOAT8_CAPABILITY
    return why_no_kernels() is None and has_conversion


def write_by_operators(
    first: torch.Tensor,
    second: torch.Tensor,
    first_cache: torch.Tensor,
    second_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    *,
    first_scale: float = 1.0,
    second_scale: float = 1.0,
) -> None:
    """See `CacheWrite`: some ten launches."""
    for rows, cache, scale in ((first, first_cache, first_scale), (second, second_cache, second_scale)):
        written = to_cache(rows[: slot_mapping.shape[0]], scale, cache.dtype)
        write_rows(cache.flatten(0, 1), slot_mapping, written)
