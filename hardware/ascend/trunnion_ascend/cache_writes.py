"""How a group writes its caches."""

from __future__ import annotations

import torch
import torch_npu


def write_cache(
    first: torch.Tensor,
    second: torch.Tensor,
    first_cache: torch.Tensor,
    second_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """Write rows of `first` and `second` [T', N, D] into two caches [num_blocks, block_size, N, D].

    slot_mapping [T] int32 with T <= T'. Slots of -1 are not written: of the operators that write caches this one passes
    over negative slots (hicann/ascend-transformer-boost, reshape_and_cache_nd.cpp); `npu_scatter_pa_kv_cache` takes
    none. The widths of the two may differ.
    """
    count = slot_mapping.shape[0]
    if count:
        torch_npu._npu_reshape_and_cache(
            first[:count].contiguous(), second[:count].contiguous(), first_cache, second_cache, slot_mapping
        )
