"""The one queue of the simulated device: work is done when it is launched, or, within `late`, when somebody waits."""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

aten = torch.ops.aten
Work = Callable[[], Any]
NO_WORK = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "set_"})
"""Operators that make a tensor and touch no element."""


class Queue:
    """Work in the order it was launched."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._waiting: deque[Work] = deque()
        self._is_late = False
        self._is_running = False
        self.launched = 0
        """Pieces of work so far: a mark of what was launched last."""
        self.caught_up = 0
        """Times that the host, while late, asked for what only a device that has caught up can say."""

    def add(self, work: Work) -> None:
        """Run `work` behind all that waits."""
        self.launched += 1
        # What work launches is part of it: a replay's own launches stand where the replay stood.
        if self._is_late and not self._is_running:
            self._waiting.append(work)
        else:
            self._run(work)

    @property
    def done(self) -> int:
        """Pieces of work that have run."""
        return self.launched - len(self._waiting)

    def wait(self, mark: int | None = None) -> None:
        """Run what was launched up to `mark`, or everything."""
        while self._waiting and (mark is None or self.done < mark):
            self._run(self._waiting.popleft())
        if not self._waiting:
            self._library.sim_keep_freed(ctypes.c_int(int(self._is_late)))

    @contextmanager
    def late(self) -> Iterator[None]:
        """Within, nothing runs before somebody waits for it, and what is freed is kept until then.

        Operators of torch that the host calls outside of graphs are done in order: copies are late, others wait first,
        which `caught_up` counts.
        """
        self.wait()
        self._is_late = True
        self._library.sim_keep_freed(ctypes.c_int(1))
        try:
            with _LateCopies(self):
                yield
        finally:
            self._is_late = False
            self.wait()

    def _run(self, work: Work) -> None:
        before, self._is_running = self._is_running, True
        try:
            with _disable_current_modes(), torch.inference_mode():
                work()
        finally:
            self._is_running = before


class _LateCopies(TorchDispatchMode):
    """Lets copies that nobody waits for be late, and has every other operator on device tensors wait."""

    def __init__(self, queue: Queue) -> None:
        super().__init__()
        self._queue = queue

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
        on_device = any(leaf.is_cuda for leaf in leaves)
        name = func._schema.name.removeprefix("aten::")
        if not on_device and not _is_cuda(kwargs.get("device")):
            return func(*args, **kwargs)
        if func is aten.copy_.default and _nobody_waits(args, kwargs):
            target, source = args[0], args[1]
            self._queue.add(lambda: target.copy_(source))
            return target
        if func is aten._to_copy.default and kwargs.get("non_blocking"):
            target = torch.empty_like(args[0], dtype=kwargs.get("dtype"), device=kwargs.get("device"))
            self._queue.add(lambda: target.copy_(args[0]))
            return target
        if func is aten.index_select.out:
            self._queue.add(lambda: func(*args, **kwargs))
            return kwargs["out"]
        if not _is_view(func) and name not in NO_WORK:
            self._queue.caught_up += 1
            self._queue.wait()
        return func(*args, **kwargs)


def _nobody_waits(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a copy is one that the host does not wait for: asked for so, or within the device."""
    non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    return bool(non_blocking) or (args[0].is_cuda and args[1].is_cuda)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _is_view(func: Any) -> bool:
    return any(arg.alias_info is not None and not arg.alias_info.is_write for arg in func._schema.arguments)
