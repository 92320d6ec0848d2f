"""The checks of a request, in the order of docs/format.md."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trunnion_bundle.errors import BundleError
from trunnion_bundle.requests import NUMPY, Array, Values, contiguous
from trunnion_bundle.signatures import Signature
from trunnion_bundle.tensors import BATCH, BYTES, IndexRange, Symbol, Tensor, TensorType


class RequestError(BundleError):
    """A request that is refused before anything is computed (INVALID_ARGUMENT)."""


def check_request(values: Mapping[str, Array], signature: Signature) -> Values:
    """The inputs as contiguous arrays, in the signature's order.

    Raises:
        RequestError: an input is missing, unknown, of another dtype or shape, or an element is outside of its range.
    """
    names = [tensor.name for tensor in signature.inputs]
    if wrong := sorted(set(values) ^ set(names)):
        is_missing = wrong[0] in names
        raise RequestError(f"{'missing' if is_missing else 'unknown'} input {wrong[0]!r}; inputs: {', '.join(names)}")
    found = {tensor.name: _as_array(values[tensor.name], tensor) for tensor in signature.inputs}
    sizes: dict[str, int] = {}
    for tensor in signature.inputs:
        _check_dims(found[tensor.name], tensor, signature.symbols, sizes)
    for tensor in signature.inputs:
        _check_range(found[tensor.name], tensor)
    return found


def rows_of(values: Mapping[str, Array], tensors: tuple[Tensor, ...]) -> int | None:
    """Rows of a request; None without a batch axis."""
    axis = tensors[0].batch_axis
    return None if axis is None else values[tensors[0].name].shape[axis]


def _as_array(value: Array, tensor: Tensor) -> Array:
    array = np.asarray(value)
    if array.dtype != NUMPY[tensor.dtype]:
        raise RequestError(f"input {tensor.name!r} is {array.dtype}; it must be {tensor.dtype}")
    if tensor.dtype == BYTES and not all(isinstance(element, bytes) for element in array.reshape(-1)):
        raise RequestError(f"input {tensor.name!r}: every element must be bytes")
    return contiguous(array)


def _check_dims(array: Array, tensor: Tensor, symbols: Mapping[str, Symbol], sizes: dict[str, int]) -> None:
    where = f"input {tensor.name!r} has shape {list(array.shape)}"
    if array.ndim != len(tensor.dims):
        raise RequestError(f"{where}; dims: {list(tensor.dims)}")
    for size, dim in zip(array.shape, tensor.dims, strict=True):
        if isinstance(dim, int):
            if size != dim:
                raise RequestError(f"{where}; dims: {list(tensor.dims)}")
            continue
        if sizes.setdefault(dim, size) != size:
            raise RequestError(f"{where}; {dim} is {sizes[dim]} in another input")
        if dim == BATCH and size < 1:
            raise RequestError(f"{where}; a request has at least one row")
        if dim in symbols and not symbols[dim].min <= size <= symbols[dim].max:
            raise RequestError(f"{where}; {dim} is {size}; limits: {symbols[dim].min} to {symbols[dim].max}")


def _check_range(array: Array, tensor: Tensor) -> None:
    if problem := outside_of_range(array, tensor):
        raise RequestError(f"input {tensor.name!r} {problem}")


def outside_of_range(array: Array, tensor: TensorType) -> str:
    """The first element that is outside of the tensor's range, or of a BOOL neither 0 nor 1; "" if there is none."""
    if tensor.dtype == "BOOL":
        array, bounds = array.view(np.uint8), IndexRange(below=2)
    elif tensor.index_range is None:
        return ""
    else:
        bounds = tensor.index_range
    outside = (array < bounds.min) | (array >= np.array(bounds.below))
    if not outside.any():
        return ""
    place = [int(i) for i in np.argwhere(outside)[0]]
    below = bounds.below[place[-1]] if isinstance(bounds.below, tuple) else bounds.below
    return f"at {place} is {int(array[tuple(place)])}; limits: {bounds.min} to {below - 1}"
