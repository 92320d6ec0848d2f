"""KV events as operations of the stream: the device waits for the host at a layer, and tells it that it has written."""

from __future__ import annotations

import ctypes

import torch

from trunnion.interfaces.kv_events import KVEvents, KVEventSlots

DRIVER_LIBRARY = "libcuda.so.1"


class StreamKVEvents(KVEvents):
    """Both functions of a slot are host functions of the current stream (`cuLaunchHostFunc`): the host never waits.

    What goes wrong on the stream stays in the slot, so that the step fails when it is waited for; its layers have run
    by then, on caches that are the host's to recompute. The driver runs host functions one after the other: an event of
    the host that itself waits for another executor of the process comes to nothing but its timeout.

    Raises:
        OSError: there is no driver library.
    """

    def __init__(self, slots: KVEventSlots) -> None:
        self._wait, self._signal = slots.wait, slots.signal
        self._addresses = slots.addresses
        self._launch = ctypes.CDLL(DRIVER_LIBRARY).cuLaunchHostFunc
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._launch.restype = ctypes.c_int

    def wait(self, buffer_set: int, layer: int) -> None:
        """Have the stream wait for the layer's `kv_ready`."""
        self._enqueue(self._wait, self._addresses[buffer_set][layer])

    def record(self, buffer_set: int, layer: int) -> None:
        """Have the stream signal the layer's `kv_written`."""
        self._enqueue(self._signal, self._addresses[buffer_set][layer])

    def _enqueue(self, function: int, slot: int) -> None:
        result = self._launch(torch.cuda.current_stream().cuda_stream, function, slot)
        if result != 0:
            raise RuntimeError(f"cuLaunchHostFunc returned CUDA error {result}")
