"""A host's events per cache layer, without a host: each cache is poison until its layer waits for it."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from trunnion.contract import LayerCaches
from trunnion.interfaces.kv_events import SLOT_OK, KVEventSlots
from trunnion.runner.model_executor import ModelExecutor


class LayerEvents:
    """Binds events to an executor, and judges every step that has some.

    Before such a step every cache is filled with NaN; it comes back in the moment its layer waits for it. When a layer
    says that it has written, its cache is kept, and held against what lies there at the end of the step.
    """

    def __init__(self, executor: ModelExecutor, caches: list[LayerCaches]) -> None:
        self.active = False
        """The host asks for events in its next steps."""
        names = [name for group in executor.kv_cache_spec().groups for name in group.layers]
        self.order = sorted(range(len(names)), key=lambda layer: int((re.findall(r"\d+", names[layer]) or ["0"])[0]))
        """Layers in the order in which the model calls them; one alone may have no number."""
        self.waited: list[int] = []
        self.written: list[int] = []
        self._caches = [tensors for layers in caches for tensors in layers]
        self._before: list[dict[str, torch.Tensor]] = []
        self._after: dict[int, dict[str, torch.Tensor]] = {}
        function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
        # Kept here: the executor knows their addresses only.
        self._functions = function(self._wait), function(self._signal)
        wait, signal = (int(ctypes.cast(each, ctypes.c_void_p).value or 0) for each in self._functions)
        sets = range(len(executor.input_buffers()))
        addresses = tuple(tuple(self._address(index, layer) for layer in range(len(names))) for index in sets)
        executor.bind_kv_events(KVEventSlots(wait=wait, signal=signal, addresses=addresses))
        self._buffer_set = -1

    @contextmanager
    def step(self, buffer_set: int, num_tokens: int) -> Iterator[None]:
        """Within, one step runs; afterwards every layer has waited once, in order, written once, and nothing early."""
        if not self.active:
            yield
            return
        self._buffer_set = buffer_set
        self.waited, self.written, self._after = [], [], {}
        self._before = [_copy(tensors) for tensors in self._caches]
        for tensors in self._caches:
            for tensor in tensors.values():
                tensor.fill_(torch.nan)
        yield
        if num_tokens or self.written:
            assert self.waited == self.order, f"waited {self.waited}, written {self.written}"
            # A module of the adapter that has several layers has written all of them when it is done.
            assert sorted(self.written) == sorted(self.order), f"waited {self.waited}, written {self.written}"
        for layer, kept in self._after.items():
            for name, tensor in self._caches[layer].items():
                same = torch.equal(_bits(tensor), _bits(kept[name]))
                assert same, f"layer {layer} wrote {name} after it said that it was done"
        for layer in set(range(len(self._caches))) - set(self.waited):
            self._restore(layer)

    def _wait(self, slot: int) -> int:
        self.waited.append(self._layer(slot))
        self._restore(self.waited[-1])
        return SLOT_OK

    def _signal(self, slot: int) -> int:
        self.written.append(self._layer(slot))
        self._after[self.written[-1]] = _copy(self._caches[self.written[-1]])
        return SLOT_OK

    def _restore(self, layer: int) -> None:
        for name, tensor in self._caches[layer].items():
            tensor.copy_(self._before[layer][name])

    @staticmethod
    def _address(buffer_set: int, layer: int) -> int:
        return (buffer_set + 1) << 16 | layer

    def _layer(self, slot: int) -> int:
        assert slot >> 16 == self._buffer_set + 1, f"slot {slot:x} is not of buffer set {self._buffer_set}"
        return slot & 0xFFFF


def _copy(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """For a comparison in which NaN equals NaN."""
    return tensor.contiguous().view(torch.uint8)
