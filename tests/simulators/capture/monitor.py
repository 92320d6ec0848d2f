"""Watches a simulated device from outside: what a step allocates and waits for, and transfers that come late."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection
from typing import Any

import torch
from capture.memory import non_owning
from capture.refusals import is_host_read, why_it_waits
from capture.stream import SimulatedStream
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

aten = torch.ops.aten
ENQUEUED = (aten.copy_.default, aten.index_select.out)
"""What an executor does on the device outside of graphs."""


class DeviceMonitor(TorchDispatchMode):
    """While active, counts what is allocated and waited for outside of graphs, by the module that asked.

    Host memory is part of the CPU here: `host` are the tensors whose reading is no wait.
    """

    def __init__(self, host: Collection[torch.Tensor] = ()) -> None:
        super().__init__()
        self.allocations: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()
        self.host = frozenset(tensor.untyped_storage()._cdata for tensor in host)
        self._host_reads = _CountHostReads(self)

    def __enter__(self) -> DeviceMonitor:
        self._host_reads.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._host_reads.__exit__(*error)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        leaves = tree_flatten((args, kwargs))[0]
        known = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
        if why_it_waits(func, args) is not None and not known <= self.host:
            self.waits[f"{func} in {_asking_module()}"] += 1
        result = func(*args, **(kwargs or {}))
        for leaf in tree_flatten(result)[0]:
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in known and leaf.numel():
                self.allocations[_asking_module()] += 1
        return result


class _CountHostReads(TorchFunctionMode):
    """Sees the reads that reach no operator."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        super().__init__()
        self._monitor = monitor

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_host_read(func, args, kwargs or {}) and args[0].untyped_storage()._cdata not in self._monitor.host:
            self._monitor.waits[f"Tensor.{func.__name__} in {_asking_module()}"] += 1
        return func(*args, **(kwargs or {}))


def _asking_module() -> str:
    """The innermost module that is neither torch's nor the simulator's."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        name = str(frame.f_globals.get("__name__"))
        if name.partition(".")[0] not in ("torch", "capture"):
            return name
        frame = frame.f_back
    return "nowhere"


class DelayedTransfers(TorchDispatchMode):
    """While active, copies to and from the device, and what an executor enqueues on it, run when the stream gets there.

    Only what lies in `host` is the host's. A host that refills its staging before then sends what it has written last,
    as a device's copy engine would.
    """

    def __init__(self, stream: SimulatedStream, host: Collection[torch.Tensor]) -> None:
        super().__init__()
        self._stream = stream
        self._host = frozenset(tensor.untyped_storage()._cdata for tensor in host)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in ENQUEUED:
            return func(*args, **kwargs)
        tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        if all(tensor.untyped_storage()._cdata in self._host for tensor in tensors):
            return func(*args, **kwargs)
        addresses, named = tree_map_only(torch.Tensor, non_owning, (args, kwargs))

        def work() -> None:
            with _disable_current_modes():
                func(*addresses, **named)

        self._stream.launch(work)
        return kwargs.get("out", args[0])
