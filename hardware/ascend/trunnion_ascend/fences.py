"""Fences of steps as NPU events, one per buffer set, used again and again."""

from __future__ import annotations

import torch


class EventFence:
    """A mark behind what was enqueued on the current stream when it was last recorded."""

    def __init__(self) -> None:
        self._event = torch.npu.Event()

    def record(self) -> EventFence:
        """Move the mark to here."""
        self._event.record()
        return self

    def wait(self) -> None:
        """Block until the device has passed the mark; the GIL is released while it waits."""
        self._event.synchronize()
