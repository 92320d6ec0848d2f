"""Requests and answers in files: safetensors of `input.NAME` and `output.NAME`, for warm-up and golden examples."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from trunnion_bundle.errors import BundleError
from trunnion_bundle.tensors import BATCH, BYTES, Tensor

Array = NDArray[np.generic]
Values = dict[str, Array]
"""Arrays by name; a BYTES tensor is an array of `object` whose elements are `bytes`."""

NUMPY: Mapping[str, np.dtype] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"i{bits // 8}") for bits in (8, 16, 32, 64)},
    "FP16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    BYTES: np.dtype(object),
}
"""dtype on the wire -> dtype of numpy."""


def write(path: Path, groups: Mapping[str, Mapping[str, Array]]) -> None:
    """Write `{"input": values, "output": values}` to a safetensors file."""
    tensors: Values = {}
    for group, values in groups.items():
        for name, array in values.items():
            key = f"{group}.{name}"
            if array.dtype == object:
                tensors[f"{key}.bytes"], tensors[f"{key}.offsets"] = _packed(array)
            else:
                tensors[key] = contiguous(array)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(save(tensors))


def read(path: Path, group: str, tensors: Iterable[Tensor]) -> Values:
    """The values of `tensors` in a file.

    Raises:
        BundleError: a tensor is missing, or has another dtype or another number of dims.
    """
    try:
        found = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{path}: no safetensors: {error}") from None
    values = {}
    for tensor in tensors:
        key = f"{group}.{tensor.name}"
        names = (f"{key}.bytes", f"{key}.offsets") if tensor.dtype == BYTES else (key,)
        if missing := [name for name in names if name not in found]:
            raise BundleError(f"{path}: no tensor {missing[0]!r}; it has: {', '.join(sorted(found))}")
        array = _unpacked(*(found[name] for name in names), tensor, path) if tensor.dtype == BYTES else found[key]
        if array.dtype != NUMPY[tensor.dtype] or array.ndim != len(tensor.dims):
            raise BundleError(f"{path}: {key} is {array.dtype} {array.shape}; the signature says {tensor.dtype} "
                              f"{list(tensor.dims)}")  # fmt: skip
        values[tensor.name] = array
    return values


def contiguous(array: Array) -> Array:
    """`array` in C order; its dims stay, also if it has none."""
    return np.ascontiguousarray(array).reshape(array.shape)


def _packed(array: Array) -> tuple[Array, Array]:
    elements = list(array.reshape(-1))
    offsets = np.cumsum([0, *map(len, elements)], dtype=np.int64)
    return np.frombuffer(b"".join(elements), np.uint8), offsets


def _unpacked(data: Array, offsets: Array, tensor: Tensor, path: Path) -> Array:
    ends = [int(end) for end in offsets]
    if not ends or ends[0] != 0 or ends[-1] != data.size or ends != sorted(ends):
        raise BundleError(f"{path}: offsets of {tensor.name} do not go from 0 to {data.size}")
    whole = data.tobytes()
    elements = np.empty(len(ends) - 1, object)
    elements[:] = [whole[start:end] for start, end in itertools.pairwise(ends)]
    shape = [-1 if dim == BATCH else dim for dim in tensor.dims]
    if any(isinstance(dim, str) for dim in shape):
        raise BundleError(f"{path}: {tensor.name} has dims {list(tensor.dims)}; of BYTES only the batch may differ")
    return elements.reshape(shape)
