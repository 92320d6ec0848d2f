"""What the operators of docs/format.md compute, in numpy: the reference of the C++ ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from trunnion_bundle.errors import BundleError
from trunnion_bundle.plugins import Plugin
from trunnion_bundle.requests import NUMPY, Array
from trunnion_bundle.signatures import Module, Signature, infer_values
from trunnion_bundle.steps import MODULE, Step, asset_paths
from trunnion_bundle.tensors import FLOATS, Symbol, TensorType, integer_limits
from trunnion_bundle.word_piece import WordPiece, read_vocabulary

_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK64 = (1 << 64) - 1

Compute = Callable[[Sequence[Array]], Sequence[Array]]
"""Arrays of a step's inputs -> arrays of all outputs that the operator has."""


def prepare_all(
    signature: Signature, modules: Mapping[str, Module], folder: Path, *, allow_plugins: bool
) -> list[Compute | None]:
    """The operators of a signature's steps; None where the module is."""
    types = infer_values(signature, modules, "signature")
    return [
        None
        if step.op == MODULE
        else prepare(step, folder, [types[name] for name in step.inputs], signature.symbols, allow_plugins)
        for step in signature.steps
    ]


def prepare(
    step: Step,
    folder: Path,
    kinds: Sequence[TensorType] = (),
    symbols: Mapping[str, Symbol] = MappingProxyType({}),
    allow_plugins: bool = False,
) -> Compute:
    """The operator of a step with its parameters; files are read from the bundle in `folder` now.

    Args:
        kinds: types of the step's inputs, which a plugin is checked by.
        symbols: of the signature, likewise.

    Raises:
        BundleError: the step is a plugin, and they are not allowed, or it cannot be opened.
    """
    if step.op == "plugin":
        if not allow_plugins:
            raise BundleError(
                f"the plugin {', '.join(asset_paths(step))} is code of the bundle's author, which runs only where "
                "plugins are allowed (allow_plugins=True, --allow-plugins)"
            )
        return Plugin(step, folder, kinds, symbols)
    if step.op == "word_piece":
        return _prepare_word_piece(step.parameters, folder)
    compute = _COMPUTE[step.op]
    return lambda inputs: compute(inputs, step.parameters)


def _cast(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,), dtype = inputs, parameters["dtype"]
    target = NUMPY[dtype]
    if dtype == "BOOL":
        return [x != 0]
    if dtype in FLOATS:
        return [x.astype(target)]
    low, high = integer_limits(dtype)
    if x.dtype.kind in "iu":
        return [np.clip(x, max(low, np.iinfo(x.dtype).min), min(high, np.iinfo(x.dtype).max)).astype(target)]
    whole = np.trunc(x.astype(np.float64))
    # A power of two, and so a double, unlike `high` itself.
    is_above, is_below = whole >= float(high + 1), whole < low
    found = np.where(is_above | is_below | np.isnan(whole), 0, whole).astype(target)
    return [np.where(is_above, target.type(high), np.where(is_below, target.type(low), found))]


def _clip(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    low, high = parameters["min"], parameters["max"]
    if low is not None:
        x = np.maximum(x, x.dtype.type(low))
    if high is not None:
        x = np.minimum(x, x.dtype.type(high))
    return [x]


def _hash_mod(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    if x.dtype == object:
        hashed = np.array([_fnv(element) for element in x.reshape(-1)], np.uint64).reshape(x.shape)
    else:
        hashed = x.astype(np.int64 if x.dtype.kind == "i" else np.uint64).view(np.uint64)
    start = np.uint64((parameters["seed"] + 1) * _GOLDEN & _MASK64)
    with np.errstate(over="ignore"):
        z = hashed + start
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
        z = z ^ (z >> np.uint64(31))
    return [(z % np.array(parameters["rows"], np.uint64)).astype(np.int64)]


def _fnv(data: bytes) -> int:
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & _MASK64
    return value


def _normalize(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    shape = [1] * x.ndim
    shape[parameters["axis"]] = -1
    mean, std = (np.array(parameters[name], np.float32).reshape(shape) for name in ("mean", "std"))
    return [(x.astype(np.float32) - mean) / std]


def fitting_length(size: int, lengths: Sequence[int], what: str) -> int:
    """The first of `lengths` that is not below `size`."""
    for length in lengths:
        if size <= length:
            return length
    raise BundleError(f"{what} has size {size}; limit: {lengths[-1]}")


def _pad(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,), axis = inputs, parameters["axis"]
    size = x.shape[axis]
    missing = fitting_length(size, parameters["lengths"], f"axis {axis}") - size
    widths = [(0, missing if i == axis else 0) for i in range(x.ndim)]
    return [np.pad(x, widths, constant_values=x.dtype.type(parameters["value"]))]


def _mask(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    return [(x != x.dtype.type(parameters["value"])).astype(NUMPY[parameters["dtype"]])]


def _pool(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    x, axis, kind = inputs[0], parameters["axis"], parameters["kind"]
    if kind == "first":
        return [np.take(x, 0, axis)]
    kept = np.ones(x.shape[: axis + 1], bool) if len(inputs) == 1 else inputs[1] != 0
    count = kept.sum(axis=axis).reshape(*kept.shape[:axis], *[1] * (x.ndim - axis - 1))
    kept = kept.reshape(*kept.shape, *[1] * (x.ndim - kept.ndim))
    if kind == "max":
        return [np.where(count > 0, np.where(kept, x, -np.inf).max(axis=axis), 0).astype(x.dtype)]
    total = np.where(kept, x, 0).sum(axis=axis, dtype=x.dtype)
    return [total if kind == "sum" else (total / np.maximum(count, 1)).astype(x.dtype)]


def _l2_normalize(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    norm = np.sqrt((x * x).sum(axis=parameters["axis"], keepdims=True))
    return [x / np.maximum(norm, x.dtype.type(parameters["epsilon"]))]


def _sigmoid(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    with np.errstate(over="ignore"):
        return [1 / (1 + np.exp(-x))]


def _softmax(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,), axis = inputs, parameters["axis"]
    found = np.exp(x - x.max(axis=axis, keepdims=True))
    return [found / found.sum(axis=axis, keepdims=True)]


def _top_k(inputs: Sequence[Array], parameters: Mapping[str, Any]) -> Sequence[Array]:
    (x,) = inputs
    # A stable ascending sort of the mirrored axis, mirrored: equal ones by lower index, NaN last and so first.
    order = x.shape[-1] - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    chosen = order[..., : parameters["k"]].astype(np.int64)
    return [np.take_along_axis(x, chosen, axis=-1), chosen]


_COMPUTE: Mapping[str, Callable[[Sequence[Array], Mapping[str, Any]], Sequence[Array]]] = {
    "cast": _cast,
    "clip": _clip,
    "hash_mod": _hash_mod,
    "normalize": _normalize,
    "pad": _pad,
    "mask": _mask,
    "pool": _pool,
    "l2_normalize": _l2_normalize,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
    "top_k": _top_k,
}


def _prepare_word_piece(parameters: Mapping[str, Any], folder: Path) -> Compute:
    tokens = read_vocabulary(folder / parameters["vocabulary"], parameters["vocabulary_size"])
    tokenizer = WordPiece(
        tokens, lowercase=parameters["lowercase"], max_chars_per_word=parameters["max_chars_per_word"]
    )
    lengths = parameters["lengths"]

    def compute(inputs: Sequence[Array]) -> Sequence[Array]:
        rows = [tokenizer.encode(text, lengths[-1]) for text in inputs[0]]
        length = fitting_length(max(map(len, rows)), lengths, "the longest text")
        ids = np.full((len(rows), length), tokenizer.pad, np.int64)
        mask = np.zeros_like(ids)
        for row, found in enumerate(rows):
            ids[row, : len(found)] = found
            mask[row, : len(found)] = 1
        return [ids, mask, np.zeros_like(ids)]

    return compute
