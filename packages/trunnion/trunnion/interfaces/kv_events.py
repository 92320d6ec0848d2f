"""KV events: what stands between a layer's call and its group when the host moves caches in and out by layers.

A host with a cache of several levels, or one that decodes elsewhere than it prefills, gives two events per cache layer
of a step: the layer must not touch its cache before `kv_ready[layer]`, and `kv_written[layer]` is signalled once the
layer's writes are done. Layers are numbered over all cache groups, in the order of `KVCacheSpec.groups` and of their
`layers`. The host's library keeps a *slot* per buffer set and layer, at a fixed address, that holds the step's events;
nothing else of them crosses the boundary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

SLOT_OK, SLOT_ERROR, SLOT_TIMEOUT, SLOT_MISUSED = range(4)
"""What both functions of `KVEventSlots` return."""


class KVEventError(RuntimeError):
    """An event that a layer waits for was signalled with an error, or did not come in time: the step fails."""


@dataclass(frozen=True, kw_only=True)
class KVEventSlots:
    """The slots of one executor, and the two functions that take a slot's address: `int32_t function(void *slot)`.

    Neither needs the GIL, and both may be called from any thread, so that a device may have its stream call them. What
    went wrong in `wait` stays in the slot: `signal` then signals an error, and the step fails when it is waited for.
    """

    wait: int
    """Address of the function that returns when the layer's `kv_ready` is there: SLOT_OK, or the cache must not be
    touched: SLOT_ERROR, SLOT_TIMEOUT. At once where the host gave no such event."""
    signal: int
    """Address of the function that signals the layer's `kv_written`. SLOT_MISUSED for a second time in one step."""
    addresses: tuple[tuple[int, ...], ...]
    """[buffer_set][layer]: addresses of the slots."""


class KVEvents(ABC):
    """How a package waits for and signals the events of a layer. One per executor; see `Hardware.kv_events`.

    Called once each per layer of a step that has events, around the layer's group, in the thread of the step. A device
    that works behind the caller's back enqueues both on its stream.
    """

    @abstractmethod
    def wait(self, buffer_set: int, layer: int) -> None:
        """What follows must not touch the layer's cache before its `kv_ready`.

        Raises:
            KVEventError: it was signalled with an error, or did not come in time.
        """

    @abstractmethod
    def record(self, buffer_set: int, layer: int) -> None:
        """Signal the layer's `kv_written` once all that was enqueued so far is done."""


class KVEventGate:
    """Stands before every group of an executor; in a step without events it only passes calls on."""

    def __init__(self) -> None:
        self._events: KVEvents | None = None
        self._buffer_set = -1

    def around(self, run: Callable[..., torch.Tensor], layer: int) -> Callable[..., torch.Tensor]:
        """`run`, behind the events of cache layer `layer`: what a break point of the layer calls."""

        def gated(*args: Any, **kwargs: Any) -> torch.Tensor:
            events = self._events
            if events is None:
                return run(*args, **kwargs)
            buffer_set = self._buffer_set
            events.wait(buffer_set, layer)
            result = run(*args, **kwargs)
            events.record(buffer_set, layer)
            return result

        return gated

    @contextmanager
    def step(self, events: KVEvents, buffer_set: int) -> Iterator[None]:
        """Within, layers wait for and signal the events of the step in `buffer_set`."""
        self._events, self._buffer_set = events, buffer_set
        try:
            yield
        finally:
            self._events = None
