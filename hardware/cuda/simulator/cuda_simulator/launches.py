"""What launches of FlashInfer's kernels compute: attention in torch, from the arguments that each launch carries.

Every block of a grid does what its counterpart does on a device, by the schedule that `plan` wrote: the same tiles of
queries and chunks of keys, partial results and their merge. Written from flashinfer 0.7.4.
"""

from __future__ import annotations

import ctypes
import re
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from cuda_simulator import latent, paged
from cuda_simulator.arguments import Dtypes, array, integers
from cuda_simulator.softmax import merge_partials
from cuda_simulator.torch_cuda import SimulatedFault, Simulation

SUCCESS, FAILURE = 0, 999


class AttentionLaunch(Protocol):
    """A stand-in that computes when it is called, on a device in each replay."""

    is_causal: bool
    reads: Counter[int]
    """Page -> tiles of queries that have read keys there, so far."""

    def __call__(self) -> None: ...


KERNELS: dict[str, Callable[[str, Dtypes, Sequence[int], Any], AttentionLaunch]] = {
    latent.KERNEL: latent.latent_launch,
    **dict.fromkeys(paged.DECODE_KERNELS, paged.decode_launch),
    **dict.fromkeys(paged.PREFILL_KERNELS, paged.prefill_launch),
}
"""Makes the stand-in of a launch, with a copy of its arguments: they are gone when a graph is replayed."""
MERGE_KERNEL = "PersistentVariableLengthMergeStatesKernel"


def run_launch(simulation: Simulation, name: bytes, library: bytes, grid: Any, arguments: Any) -> int:
    """Called by the runtime for each launch; the code goes back to the library that launched."""
    try:
        sizes = [grid[axis] for axis in range(3)]
        simulation.launch(_kernel(simulation, name.decode(), Dtypes.of(library.decode()), sizes, arguments))
    except Exception:
        traceback.print_exc()
        return FAILURE
    return SUCCESS


def _kernel(
    simulation: Simulation, name: str, dtypes: Dtypes, grid: Sequence[int], arguments: Any
) -> Callable[[], None]:
    for known, make in KERNELS.items():
        if known in name:
            launch = make(name, dtypes, grid, arguments)
            simulation.note(launch)
            return launch
    if MERGE_KERNEL in name:
        return _merge_launch(name, dtypes.o, arguments)
    raise SimulatedFault(f"a launch that is not simulated: {name}")


def _merge_launch(name: str, dtype: torch.dtype, arguments: Any) -> Callable[[], None]:
    """Arguments: V, S, indptr, v_merged, s_merged, max_seq_len, seq_len_ptr, num_heads; of `attention/cascade.cuh`."""
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
            if merged_lse:
                array(merged_lse, (heads,), torch.float32, row * heads).fill_(-torch.inf)
            continue
        parts = array(v, (count, heads, dim), dtype, first * heads * dim).float()
        mean, total = merge_partials(parts, array(s, (count, heads), torch.float32, first * heads))
        target.copy_(mean)
        if merged_lse:
            array(merged_lse, (heads,), torch.float32, row * heads).copy_(total)
