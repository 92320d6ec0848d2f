"""The simulated capture: notes operators with the addresses they worked on, and runs them there again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from capture.memory import SimulatedPool, non_owning
from capture.refusals import SimulatedFault, is_host_read, why_it_waits
from capture.stream import SimulatedStream
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Operators that only take memory."""
EXPANDED = torch._C.DispatchKey.CompositeExplicitAutograd

Call = Callable[[], Any]
Externals = dict[int, tuple[StorageWeakRef, str]]
"""Memory outside the pool, by storage: it is not kept alive, and named if it is gone."""


class SimulatedGraph:
    """Operators at fixed addresses. It owns the pool it was captured in, and nothing else that it reads."""

    def __init__(
        self,
        calls: list[Call],
        externals: list[Externals],
        pool: SimulatedPool,
        stream: SimulatedStream,
    ) -> None:
        self.calls = calls
        self.replays = 0
        self._externals = externals
        self._pool = pool
        self._stream = stream

    def replay(self) -> None:
        """Launch the operators again.

        Raises:
            SimulatedFault: a tensor from outside the pool that the graph reads or writes is gone.
        """
        for externals in self._externals:
            for reference, what in externals.values():
                if reference.expired():
                    raise SimulatedFault(f"the graph outlives a tensor it was captured with: {what}")
        self.replays += 1
        self._stream.launch(self._run)

    def _run(self) -> None:
        # What was captured in inference mode may be written in it only.
        with _disable_current_modes(), torch.inference_mode():
            for call in self.calls:
                call()


class SimulatedCapture(TorchDispatchMode):
    """Captures segments in one pool; operators that are made of others are noted as those others.

    `begin` and `end` may be called as often as there are segments.
    """

    def __init__(self, pool: SimulatedPool, stream: SimulatedStream) -> None:
        super().__init__()
        self.pool = pool
        self.stream = stream
        self._host_reads = _RefuseHostReads()
        self._calls: list[Call] = []
        self._externals: Externals = {}
        self._lent: Externals = {}

    def begin(self) -> None:
        """Start a segment."""
        self._calls, self._externals = [], {}
        self._host_reads.__enter__()
        self.__enter__()

    def end(self) -> SimulatedGraph | None:
        """End the segment; None if no operator was noted."""
        self.__exit__(None, None, None)
        self._host_reads.__exit__(None, None, None)
        if not self._calls:
            return None
        return SimulatedGraph(self._calls, [self._externals, self._lent], self.pool, self.stream)

    def non_owning(self, tensor: torch.Tensor) -> torch.Tensor:
        """By address; see `SegmentCapture`. What lies outside the pool must outlive every graph of this capture."""
        if not self.pool.owns(tensor):
            _hold_weakly(tensor, self._lent)
        with _disable_current_modes():
            return non_owning(tensor)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        expanded = self._expand(func, args, kwargs)
        if expanded is not NotImplemented:
            return expanded
        reason = why_it_waits(func, args)
        if reason is not None:
            raise SimulatedFault(f"{func} is not allowed while a graph is captured: {reason}")
        result = func(*args, **kwargs)
        if any(arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments):
            self._note(func, args, kwargs)
            return result
        made = _made_here(result, args, kwargs)
        if not made:
            # A view: the same memory, which no replay has to make again.
            return result
        is_empty = func._schema.name.removeprefix("aten::") in EMPTY
        moved = {id(tensor): self._move(tensor, is_empty) for tensor in made}
        placed = tree_map_only(torch.Tensor, lambda tensor: moved.get(id(tensor), tensor), result)
        if not is_empty:
            self._note_made(func, args, kwargs, placed)
        return placed

    def _expand(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that is made of others, so that the others come here; NotImplemented if it is not."""
        if func.namespace == "aten" and not _is_composite(func):
            return NotImplemented
        with self:
            if func.namespace != "aten":
                return func._op_dk(EXPANDED, *args, **kwargs)
            return func.decompose(*args, **kwargs)

    def _move(self, tensor: torch.Tensor, is_empty: bool) -> torch.Tensor:
        placed = self.pool.empty(tensor.shape, tensor.stride(), tensor.dtype)
        return placed if is_empty else placed.copy_(tensor)

    def _note(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        args, kwargs = tree_map_only(torch.Tensor, self._address, (args, kwargs))
        self._calls.append(functools.partial(func, *args, **kwargs))

    def _note_made(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], placed: Any) -> None:
        """In place if the operator has such a variant, else through a copy."""
        outputs = list(placed) if isinstance(placed, tuple | list) else [placed]
        variant = _out_variant(func)
        if variant is not None:
            into = {name: self._address(tensor) for name, tensor in zip(variant[1], outputs, strict=True)}
            accepted = {name: value for name, value in kwargs.items() if name in variant[2]}
            self._note(variant[0], args, {**accepted, **into})
            return
        targets = [self._address(tensor) for tensor in outputs]
        args, kwargs = tree_map_only(torch.Tensor, self._address, (args, kwargs))
        self._calls.append(functools.partial(_run_and_copy, func, args, kwargs, targets))

    def _address(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a graph knows of a tensor. Scalars from outside go into it by value, as arguments of a launch do."""
        if self.pool.owns(tensor) or tensor.numel() == 0:
            return non_owning(tensor)
        if tensor.dim() == 0:
            return tensor.clone()
        _hold_weakly(tensor, self._externals)
        return non_owning(tensor)


def _hold_weakly(tensor: torch.Tensor, externals: Externals) -> None:
    storage = tensor.untyped_storage()
    if storage._cdata not in externals:
        externals[storage._cdata] = (StorageWeakRef(storage), f"{tensor.dtype} {tuple(tensor.shape)}")


class _RefuseHostReads(TorchFunctionMode):
    """Stops Python from looking at values while a graph is captured."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if is_host_read(func, args, kwargs or {}):
            raise SimulatedFault(f"Tensor.{func.__name__} is not allowed while a graph is captured: it waits")
        return func(*args, **(kwargs or {}))


def _made_here(result: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """Tensors of a result that share no memory with the arguments."""
    leaves = tree_flatten((args, kwargs))[0]
    known = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, torch.Tensor)}
    return [
        leaf
        for leaf in tree_flatten(result)[0]
        if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in known
    ]


def _run_and_copy(func: Any, args: Any, kwargs: Any, targets: list[torch.Tensor]) -> None:
    result = func(*args, **kwargs)
    for target, value in zip(targets, result if isinstance(result, tuple | list) else (result,), strict=True):
        target.copy_(value)


@functools.cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


Variant = tuple[Any, list[str], frozenset[str]]
_PLACES = ("dtype", "layout", "device", "pin_memory")


@functools.cache
def _out_variant(func: Any) -> Variant | None:
    """The overload that writes to given tensors, the names of those, and all its arguments; None if there is none."""
    wanted = [(arg.name, str(arg.type)) for arg in func._schema.arguments if arg.name not in _PLACES]
    for name in func.overloadpacket.overloads():
        overload = getattr(func.overloadpacket, name)
        arguments = overload._schema.arguments
        outs = [arg.name for arg in arguments if arg.is_out]
        rest = [(arg.name, str(arg.type)) for arg in arguments if not arg.is_out]
        if outs and len(outs) == len(func._schema.returns) and rest == wanted:
            return overload, outs, frozenset(arg.name for arg in arguments)
    return None
