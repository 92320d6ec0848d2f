"""Tensors of a safetensors file as they lie in mapped memory, whose pages are given back one tensor at a time."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from trunnion.errors import UnsupportedError
from trunnion.weights.safetensors_header import TORCH_DTYPES, HeaderEntry


class MappedFile:
    """The file at `path`, mapped while this or a tensor of it lives. Nothing that is written reaches the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as file:
            self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        if hasattr(mmap, "MADV_SEQUENTIAL"):
            self._memory.madvise(mmap.MADV_SEQUENTIAL)

    def tensor(self, name: str, entry: HeaderEntry) -> torch.Tensor:
        """The tensor that `entry` describes, not copied.

        Raises:
            UnsupportedError: torch has no such dtype here.
        """
        dtype = TORCH_DTYPES.get(entry.stored)
        if dtype is None:
            choices = ", ".join(TORCH_DTYPES)
            raise UnsupportedError(f"{self._path}: {name!r} is stored as {entry.stored}; choices: {choices}")
        if entry.begin == entry.end:
            return torch.empty(entry.shape, dtype=dtype)
        raw = torch.frombuffer(self._memory, dtype=torch.uint8, offset=entry.begin, count=entry.end - entry.begin)
        return raw.view(dtype).view(entry.shape)

    def give_back(self, entry: HeaderEntry) -> None:
        """The tensor's pages are no longer this process's; whoever still reads it has them read again."""
        if not hasattr(mmap, "MADV_DONTNEED") or entry.begin == entry.end:
            return
        begin = entry.begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._memory.madvise(mmap.MADV_DONTNEED, begin, entry.end - begin)
