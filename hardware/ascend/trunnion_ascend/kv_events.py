"""KV events as operations of the stream: the device waits for the host at a layer, and tells it that it has written."""

from __future__ import annotations

import ctypes

import torch

from trunnion.interfaces.kv_events import KVEventSlots
from trunnion.reference.stream_events import EnqueuedKVEvents

RUNTIME_LIBRARY = "libascendcl.so"


class StreamKVEvents(EnqueuedKVEvents):
    """Host functions of the current stream (`aclrtLaunchHostFunc`).

    The runtime calls the functions of one stream in one thread that it makes for it, and holds back what follows on
    the stream.

    Raises:
        OSError: there is no CANN.
        AttributeError: this CANN has no `aclrtLaunchHostFunc`.
    """

    def __init__(self, slots: KVEventSlots) -> None:
        super().__init__(slots)
        self._launch = ctypes.CDLL(RUNTIME_LIBRARY).aclrtLaunchHostFunc
        self._launch.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._launch.restype = ctypes.c_int

    def enqueue(self, function: int, slot: int) -> None:
        """See `EnqueuedKVEvents.enqueue`; RuntimeError if the runtime refuses."""
        # Asking for the handle empties torch_npu's task queue: what was called before lies on the stream before.
        result = self._launch(torch.npu.current_stream().npu_stream, function, slot)
        if result != 0:
            raise RuntimeError(f"aclrtLaunchHostFunc returned CANN error {result}")
