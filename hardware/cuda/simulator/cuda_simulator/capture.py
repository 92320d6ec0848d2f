"""What a simulated graph records: operators and launches at the addresses of their capture, to run them again."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

aten = torch.ops.aten

POOL_BYTES = 1 << 30
"""Address space of a pool; only what is used takes memory."""
EMPTY = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
DEVICE = torch._C.DispatchKey.CUDA
EXPANDED = torch._C.DispatchKey.CompositeExplicitAutograd
WAITS = frozenset({aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default})
COPIES = frozenset({aten.copy_.default, aten._to_copy.default})


class SimulatedFault(RuntimeError):
    """What a device would have refused, or got wrong."""


class Pool:
    """Private memory of the graphs that share it."""

    _ids = itertools.count(1)

    def __init__(self, library: ctypes.CDLL) -> None:
        self.id = next(self._ids)
        self._library = library
        self._is_fresh = False
        library.sim_pool_create(ctypes.c_int64(self.id), ctypes.c_int64(POOL_BYTES))

    def use(self, wanted: bool) -> None:
        """Take new device memory from here, or from anywhere."""
        self._library.sim_pool_use(ctypes.c_int64(self.id if wanted else -1))
        self._is_fresh |= wanted

    def owns(self, tensor: torch.Tensor) -> bool:
        return bool(self._library.sim_pool_owns(ctypes.c_int64(self.id), ctypes.c_void_p(tensor.data_ptr())))

    def forget_capture(self) -> None:
        """Poison what captures have left: on a device nothing ran while it was captured."""
        if self._is_fresh:
            self._library.sim_pool_poison(ctypes.c_int64(self.id))
        self._is_fresh = False

    @property
    def high_water(self) -> int:
        return int(self._library.sim_pool_high_water(ctypes.c_int64(self.id)))


class Recording(TorchDispatchMode):
    """Active during a capture: notes each operator, and refuses what waits for the device or moves to or from it."""

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.pool = pool
        self.calls: list[Callable[[], Any]] = []
        self.externals: dict[int, tuple[StorageWeakRef, str]] = {}

    def add(self, call: Callable[[], Any]) -> None:
        """Note a launch that does not come through torch."""
        self.calls.append(call)

    def note(self, tensor: torch.Tensor) -> None:
        """Remember memory from outside the pool that is read or written by address."""
        if tensor.numel() and not self.pool.owns(tensor):
            storage = tensor.untyped_storage()
            self.externals.setdefault(
                storage._cdata, (StorageWeakRef(storage), f"{tensor.dtype} {tuple(tensor.shape)}")
            )

    def check_alive(self) -> None:
        """SimulatedFault if memory from outside the pool that the graph reads or writes was given back."""
        for reference, what in self.externals.values():
            if reference.expired():
                raise SimulatedFault(f"the graph outlives a tensor it was captured with: {what}")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        expanded = self._expand(func, args, kwargs)
        if expanded is not NotImplemented:
            return expanded
        _refuse_waits(func, args, kwargs)
        result = func(*args, **kwargs)
        if any(arg.alias_info is not None and arg.alias_info.is_write for arg in func._schema.arguments):
            args, kwargs = tree_map_only(torch.Tensor, self._address, (args, kwargs))
            self.calls.append(functools.partial(func, *args, **kwargs))
            return result
        made = _made_here(result, args, kwargs)
        if made and func._schema.name.removeprefix("aten::") not in EMPTY:
            args, kwargs = tree_map_only(torch.Tensor, self._address, (args, kwargs))
            targets = tree_map_only(torch.Tensor, self._address, result)
            self.calls.append(functools.partial(_run_and_copy, func, args, kwargs, targets))
        return result

    def _expand(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator that is made of others, so that the others come here; NotImplemented if it is not."""
        if func.namespace == "aten" and not _is_composite(func):
            return NotImplemented
        with self:
            if func.namespace != "aten":
                key = DEVICE if _has_kernel(func, "CUDA") else EXPANDED
                return func._op_dk(key, *args, **kwargs)
            return func.decompose(*args, **kwargs)

    def _address(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a graph knows of a tensor; a scalar of the host goes into it by value."""
        if not tensor.is_cuda:
            return tensor.clone()
        self.note(tensor)
        with _disable_current_modes():
            return non_owning(tensor)


def non_owning(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements at the same address, without a share in the life of the memory."""
    storage = tensor.untyped_storage()
    borrowed = torch._C._construct_storage_from_data_pointer(storage.data_ptr(), tensor.device, storage.nbytes())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(borrowed, tensor.storage_offset(), tensor.size(), tensor.stride())


def _refuse_waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    why = None
    if func in WAITS or torch.Tag.data_dependent_output in func.tags:
        why = "its result is a value on the host"
    elif torch.Tag.dynamic_output_shape in func.tags and not _indexes_by_numbers(func, args):
        why = "its shape depends on values"
    elif func in COPIES:
        places = {tensor.device.type for tensor in tensors} | {str(kwargs.get("device") or "cuda").split(":")[0]}
        why = "it copies between host and device" if len(places) > 1 else None
    if why is not None:
        raise SimulatedFault(f"{func} is not allowed while a graph is captured: {why}")


def _indexes_by_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    if func not in (aten.index.Tensor, aten._unsafe_index.Tensor):
        return False
    return not any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


def _made_here(result: Any, args: Any, kwargs: Any) -> bool:
    """Whether the result has memory of its own."""
    known = {
        leaf.untyped_storage()._cdata for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)
    }
    leaves = [leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, torch.Tensor)]
    return any(leaf.untyped_storage()._cdata not in known for leaf in leaves)


def _run_and_copy(func: Any, args: Any, kwargs: Any, targets: Any) -> None:
    result = func(*args, **kwargs)
    for target, value in zip(tree_flatten(targets)[0], tree_flatten(result)[0], strict=True):
        if isinstance(target, torch.Tensor):
            target.copy_(value)


@functools.cache
def _is_composite(func: Any) -> bool:
    return _has_kernel(func, "CompositeImplicitAutograd")


def _has_kernel(func: Any, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))
