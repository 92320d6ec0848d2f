"""Compares answers with wanted ones by the tolerance of a signature."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trunnion_bundle.requests import Array
from trunnion_bundle.signatures import Signature
from trunnion_bundle.tensors import FLOATS, Tensor, Tolerance


def difference(found: Mapping[str, Array], wanted: Mapping[str, Array], signature: Signature) -> str:
    """Where and by how much `found` differs from `wanted` beyond the tolerance, or ""."""
    for tensor in signature.outputs:
        if reason := _differs(found[tensor.name], wanted[tensor.name], tensor):
            return f"{tensor.name}: {reason}"
    return ""


def _differs(found: Array, wanted: Array, tensor: Tensor) -> str:
    if found.shape != wanted.shape or found.dtype != wanted.dtype:
        return f"{found.dtype} {list(found.shape)}; wanted: {wanted.dtype} {list(wanted.shape)}"
    outside = ~_close(found, wanted, tensor)
    if not outside.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(outside)[0])
    tolerance = (tensor.tolerance or Tolerance()).to_json()
    count = int(outside.sum())
    return (
        f"{found[place]} at {list(place)}; wanted: {wanted[place]} within {tolerance} ({count} of {found.size} differ)"
    )


def _close(found: Array, wanted: Array, tensor: Tensor) -> Array:
    if tensor.dtype not in FLOATS:
        return found == wanted
    tolerance = tensor.tolerance or Tolerance()
    x, y = found.astype(np.float64), wanted.astype(np.float64)
    with np.errstate(invalid="ignore"):
        is_close = np.abs(x - y) <= tolerance.absolute + tolerance.relative * np.abs(y)
    # Neither NaN nor an infinity is close to itself.
    same = (np.isnan(x) & np.isnan(y)) | (x == y)
    return (is_close & np.isfinite(y)) | same
