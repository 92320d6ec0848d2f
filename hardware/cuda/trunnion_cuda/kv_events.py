"""KV events as operations of the stream: the device waits for the host at a layer, and tells it that it has written."""

from __future__ import annotations

import ctypes

import torch

from trunnion.interfaces.kv_events import KVEventSlots
from trunnion.reference.stream_events import EnqueuedKVEvents

DRIVER_LIBRARY = "libcuda.so.1"


class StreamKVEvents(EnqueuedKVEvents):
    """Host functions of the current stream (`cuLaunchHostFunc`).

    The driver runs host functions one after the other: an event of the host that itself waits for another executor of
    the process comes to nothing but its timeout.

    Raises:
        OSError: there is no driver library.
    """

    def __init__(self, slots: KVEventSlots) -> None:
        super().__init__(slots)
        self._launch = ctypes.CDLL(DRIVER_LIBRARY).cuLaunchHostFunc
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._launch.restype = ctypes.c_int

    def enqueue(self, function: int, slot: int) -> None:
        """See `EnqueuedKVEvents.enqueue`; RuntimeError if the driver refuses."""
        result = self._launch(torch.cuda.current_stream().cuda_stream, function, slot)
        if result != 0:
            raise RuntimeError(f"cuLaunchHostFunc returned CUDA error {result}")
