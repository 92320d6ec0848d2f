"""The simulated memory pool of graphs: one block of memory in which new tensors are poison and dead ones make room."""

from __future__ import annotations

import bisect
import ctypes
import weakref
from collections import deque

import numpy as np
import torch
from capture.refusals import SimulatedFault

ALIGNMENT = 64
POISON = 0xFF
"""In every byte: NaN in float32, bfloat16 and float16, -1 in integers."""


class SimulatedPool:
    """Tensors made here share `capacity` bytes; the memory of one that is dead, views included, goes to the next."""

    def __init__(self, capacity: int = 64 << 20) -> None:
        self._memory = np.empty(capacity, dtype=np.uint8)
        self.base = self._memory.ctypes.data
        self.capacity = capacity
        self._free: list[tuple[int, int]] = [(0, capacity)]
        # A tensor may die in any thread and at any time, a collective's last reference for example.
        self._dead: deque[tuple[int, int]] = deque()
        self.high_water = 0
        """Bytes from the start to the end of the last tensor there ever was."""
        self.allocations = 0

    def empty(self, shape: torch.Size | tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A tensor full of poison.

        Raises:
            SimulatedFault: the pool is full.
        """
        extent = _extent(shape, stride) * dtype.itemsize
        if extent == 0:
            return torch.empty_strided(shape, stride, dtype=dtype)
        size = -(-extent // ALIGNMENT) * ALIGNMENT
        offset = self._take(size)
        view = self._memory[offset : offset + size]
        view.fill(POISON)
        weakref.finalize(view, self._dead.append, (offset, size)).atexit = False
        self.allocations += 1
        return torch.from_numpy(view).view(dtype).as_strided(shape, stride)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor lies in this pool."""
        return self.base <= tensor.untyped_storage().data_ptr() < self.base + self.capacity

    def poison(self) -> None:
        """Forget everything: nothing in the pool outlives a step."""
        self._memory[: self.high_water].fill(POISON)

    def _take(self, size: int) -> int:
        while self._dead:
            self._give_back(*self._dead.popleft())
        for index, (offset, length) in enumerate(self._free):
            if length >= size:
                if length == size:
                    del self._free[index]
                else:
                    self._free[index] = (offset + size, length - size)
                self.high_water = max(self.high_water, offset + size)
                return offset
        raise SimulatedFault(f"the simulated pool of {self.capacity} bytes has no room for {size} more")

    def _give_back(self, offset: int, size: int) -> None:
        """Join with free neighbours."""
        index = bisect.bisect(self._free, (offset, size))
        if index < len(self._free) and self._free[index][0] == offset + size:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == offset:
            before, length = self._free.pop(index - 1)
            offset, size = before, length + size
            index -= 1
        self._free.insert(index, (offset, size))


def non_owning(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements by address alone, as a device's graph knows them; wild once the owner is dead."""
    if tensor.numel() == 0:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    storage = tensor.untyped_storage()
    start = storage.data_ptr() + tensor.storage_offset() * tensor.element_size()
    extent = _extent(tensor.shape, tensor.stride()) * tensor.element_size()
    memory = (ctypes.c_char * extent).from_address(start)
    return torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())


def _extent(shape: torch.Size | tuple[int, ...], stride: tuple[int, ...]) -> int:
    """Elements from a tensor's first to its last."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
