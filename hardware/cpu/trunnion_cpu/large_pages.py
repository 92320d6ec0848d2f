"""Moves weights to memory in large pages: a step reads them all, and looks up fewer addresses then."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn

LEAST_BYTES = 4 << 20
"""Of all weights: less stays in the caches anyway."""
ALIGNMENT = 64
MAPS = Path("/proc/self/smaps")


def to_large_pages(modules: Iterable[nn.Module]) -> str:
    """Move parameters and buffers of the host's memory there, one after the other; one line that says what was done.

    What shares memory goes on sharing it. What is no whole and dense piece of memory stays where it is. Large pages are
    what Linux gives (`MADV_HUGEPAGE`); another system is left to decide by itself.
    """
    groups: dict[int, list[torch.Tensor]] = {}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            if _is_whole(tensor):
                groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(tensor)
    total = sum(_room(tensors[0]) for tensors in groups.values())
    if total < LEAST_BYTES:
        return f"no: {total:,} bytes are few"
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return "no: this system gives none on request"
    memory = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError as error:
        return f"no: {error}"
    arena = torch.frombuffer(memory, dtype=torch.uint8)
    offset = 0
    for tensors in groups.values():
        piece = arena[offset : offset + tensors[0].nbytes]
        offset += _room(tensors[0])
        piece.copy_(tensors[0].detach().reshape(-1).view(torch.uint8))
        for tensor in tensors:
            tensor.data = piece.view(tensor.dtype).view(tensor.shape)
    return _outcome(arena.data_ptr(), total)


def _is_whole(tensor: torch.Tensor) -> bool:
    if not tensor.is_cpu or tensor.is_inference() or tensor.numel() == 0 or not tensor.is_contiguous():
        return False
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _room(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT


def _outcome(address: int, total: int) -> str:
    """How much the system has given large pages to."""
    given = large_bytes(address)
    if given is None:
        return f"asked for, {total:,} bytes"
    return f"{given:,} of {total:,} bytes" if given else f"no: the system gave none of {total:,} bytes"


def large_bytes(address: int) -> int | None:
    """Bytes in large pages of the mapping that `address` lies in; None where the system does not say."""
    if not MAPS.is_file():
        return None
    is_within = False
    for line in MAPS.read_text().splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, end = (int(bound, 16) for bound in first.split("-"))
            is_within = start <= address < end
        elif is_within and first == "AnonHugePages:":
            return int(rest.split()[0]) << 10
    return None
