"""KV events as operations of the stream: the device waits for the host at a layer, and tells it that it has written."""

from __future__ import annotations

import ctypes

import torch

from trunnion.interfaces.kv_events import KVEvents, KVEventSlots

RUNTIME_LIBRARY = "libascendcl.so"


class StreamKVEvents(KVEvents):
    """Both functions of a slot are host functions of the current stream (`aclrtLaunchHostFunc`): the host never waits.

    What goes wrong on the stream stays in the slot, so that the step fails when it is waited for; its layers have run
    by then, on caches that are the host's to recompute. The runtime calls the functions of one stream in one thread
    that it makes for it, and holds back what follows on the stream.

    Raises:
        OSError: there is no CANN.
        AttributeError: this CANN has no `aclrtLaunchHostFunc`.
    """

    def __init__(self, slots: KVEventSlots) -> None:
        self._wait, self._signal = slots.wait, slots.signal
        self._addresses = slots.addresses
        self._launch = ctypes.CDLL(RUNTIME_LIBRARY).aclrtLaunchHostFunc
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._launch.restype = ctypes.c_int

    def wait(self, buffer_set: int, layer: int) -> None:
        """Have the stream wait for the layer's `kv_ready`."""
        self._enqueue(self._wait, self._addresses[buffer_set][layer])

    def record(self, buffer_set: int, layer: int) -> None:
        """Have the stream signal the layer's `kv_written`."""
        self._enqueue(self._signal, self._addresses[buffer_set][layer])

    def _enqueue(self, function: int, slot: int) -> None:
        # Asking for the handle empties torch_npu's task queue: what was called before lies on the stream before.
        result = self._launch(torch.npu.current_stream().npu_stream, function, slot)
        if result != 0:
            raise RuntimeError(f"aclrtLaunchHostFunc returned CANN error {result}")
