"""What a simulated device refuses while it captures, and counts otherwise: whatever makes the host wait for it."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


class SimulatedFault(RuntimeError):
    """What a device would have refused, or got wrong; it names the operator or tensor."""


WAITS = frozenset({aten._local_scalar_dense.default, aten.equal.default, aten.is_nonzero.default})
HOST_READS = frozenset({torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.cpu, torch.Tensor.__array__})
"""Calls that read device memory from the host and reach no operator on a CPU's tensors; `item` and `if` do."""


def why_it_waits(func: Any, args: tuple[Any, ...]) -> str | None:
    """Why the host must wait for the operator's result, or None."""
    if func in WAITS or torch.Tag.data_dependent_output in func.tags:
        return "its result is a value on the host"
    if func is aten.index.Tensor or func is aten._unsafe_index.Tensor:
        masks = (torch.bool, torch.uint8)
        return _SHAPE if any(index is not None and index.dtype in masks for index in args[1]) else None
    return _SHAPE if torch.Tag.dynamic_output_shape in func.tags else None


_SHAPE = "its shape depends on values"


def is_host_read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call of torch's Python API copies a tensor to the host."""
    if func in HOST_READS:
        return True
    if func is not torch.Tensor.to:
        return False
    return any(_is_host(value) for value in (*args[1:], *kwargs.values()))


def _is_host(value: Any) -> bool:
    """A device given by name is one that the caller chose; tensors carry their device as an object."""
    return isinstance(value, str) and value == "cpu"
