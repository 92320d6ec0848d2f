"""KV events without a device's streams: the thread of the step waits for them, with the GIL released."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from trunnion.interfaces.hardware import Fence
from trunnion.interfaces.kv_events import SLOT_MISUSED, SLOT_OK, SLOT_TIMEOUT, KVEventError, KVEvents, KVEventSlots


class HostKVEvents(KVEvents):
    """For work that is done when its call returns.

    With a `record_fence`, for a device that works on: the thread waits at each layer until the device has caught up,
    which costs the overlap of host and device. A package with a stream does better with operations of the stream.
    """

    def __init__(self, slots: KVEventSlots, record_fence: Callable[[int], Fence | None] | None = None) -> None:
        function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
        self._wait, self._signal = function(slots.wait), function(slots.signal)
        self._addresses = slots.addresses
        self._record_fence = record_fence

    def wait(self, buffer_set: int, layer: int) -> None:
        """See `KVEvents.wait`; RuntimeError if the layer ran before in this step."""
        result = self._wait(self._addresses[buffer_set][layer])
        if result == SLOT_MISUSED:
            raise _ran_twice(layer)
        if result != SLOT_OK:
            why = "did not come in time" if result == SLOT_TIMEOUT else "was signalled with an error"
            raise KVEventError(f"kv_ready[{layer}] {why}")

    def record(self, buffer_set: int, layer: int) -> None:
        """See `KVEvents.record`.

        Raises:
            RuntimeError: the layer ran twice in this step.
        """
        fence = None if self._record_fence is None else self._record_fence(buffer_set)
        if fence is not None:
            fence.wait()
        if self._signal(self._addresses[buffer_set][layer]) != SLOT_OK:
            raise _ran_twice(layer)


def _ran_twice(layer: int) -> RuntimeError:
    return RuntimeError(f"cache layer {layer} ran twice in one step: its kv_written was signalled after the first time")
