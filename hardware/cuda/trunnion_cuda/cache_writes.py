"""How a group writes its caches: by one launch of this package's kernel, or by torch where that cannot run."""

from __future__ import annotations

from typing import Protocol

import torch

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
    has_conversion = stored_dtype != torch.float8_e4m3fn or torch.cuda.get_device_capability() >= FLOAT8_CAPABILITY
    if why_no_kernels() is None and has_conversion:
        # Imports Triton, which may be absent.
        from trunnion_cuda.kernels.cache_write import write_cache

        return write_cache
    return write_by_operators


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
