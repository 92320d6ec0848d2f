"""Fences and KV events of devices with streams: a package says how to make an event, and how to enqueue a call."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from trunnion.interfaces.kv_events import KVEvents, KVEventSlots


class DeviceEvent(Protocol):
    """What `torch.Event` and those of torch's device modules have."""

    def record(self) -> None:
        """Mark the current stream's end."""
        ...

    def synchronize(self) -> None:
        """Block until the device has passed the mark; the GIL is released while it waits."""
        ...


class EventFence:
    """A mark behind what was enqueued on the current stream when it was last recorded. One per buffer set, kept."""

    def __init__(self, event: DeviceEvent) -> None:
        self._event = event

    def record(self) -> EventFence:
        """Move the mark to here."""
        self._event.record()
        return self

    def wait(self) -> None:
        """Block until the device has passed the mark."""
        self._event.synchronize()


class EnqueuedKVEvents(KVEvents):
    """Both functions of a slot are calls that the current stream makes: the host never waits.

    What goes wrong on the stream stays in the slot, so that the step fails when it is waited for; its layers have run
    by then, on caches that are the host's to recompute.
    """

    def __init__(self, slots: KVEventSlots) -> None:
        self._slots = slots

    @abstractmethod
    def enqueue(self, function: int, slot: int) -> None:
        """Have the current stream call the C function at address `function` with address `slot`."""

    def wait(self, buffer_set: int, layer: int) -> None:
        """Have the stream wait for the layer's `kv_ready`."""
        self.enqueue(self._slots.wait, self._slots.addresses[buffer_set][layer])

    def record(self, buffer_set: int, layer: int) -> None:
        """Have the stream signal the layer's `kv_written`."""
        self.enqueue(self._slots.signal, self._slots.addresses[buffer_set][layer])
