"""Arrays of any framework as numpy arrays with a dtype of the wire."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from trunnion_bundle.errors import BundleError
from trunnion_bundle.requests import NUMPY, Array

_BY_NUMPY = {kind: name for name, kind in NUMPY.items()}


def as_numpy(value: Any, where: str) -> Array:
    """`value` of torch, JAX, numpy, or a list of bytes.

    Raises:
        BundleError: its dtype is none of the wire.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu().contiguous()
        value = value.view(torch.int16).numpy().view(NUMPY["BF16"]) if value.dtype == torch.bfloat16 else value.numpy()
    elif isinstance(value, list | tuple) and all(isinstance(element, bytes) for element in value):
        found = np.empty(len(value), object)
        found[:] = value
        value = found
    array = np.asarray(value)
    dtype_of(array, where)
    return array


def dtype_of(array: Array, where: str) -> str:
    """The array's dtype by its name on the wire."""
    name = _BY_NUMPY.get(array.dtype)
    if name is None:
        raise BundleError(f"{where} is {array.dtype}; choices: {', '.join(map(str, NUMPY.values()))}")
    return name
