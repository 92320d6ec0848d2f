"""Tensors as the contract describes them: dtype, dims, batch axis, index range, padding and tolerance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import (
    LARGEST,
    NAME,
    Fields,
    as_array,
    as_integer,
    as_name,
    shown,
)

BATCH = "batch"
"""The dim that counts rows."""
LARGEST_RANK = 8

SAFETENSORS = {
    "BOOL": "BOOL", "UINT8": "U8", "UINT16": "U16", "UINT32": "U32", "UINT64": "U64",
    "INT8": "I8", "INT16": "I16", "INT32": "I32", "INT64": "I64",
    "FP16": "F16", "BF16": "BF16", "FP32": "F32", "FP64": "F64",
}  # fmt: skip
"""dtype on the wire -> dtype in a safetensors file."""
BYTES = "BYTES"
DTYPES = (*SAFETENSORS, BYTES)
FLOATS = ("FP16", "BF16", "FP32", "FP64")
SIGNED = {"INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64}
UNSIGNED = {"UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64}
INTEGERS = (*SIGNED, *UNSIGNED)

Dim = int | str
"""A size, `"batch"`, or the name of a symbol."""


def integer_limits(dtype: str) -> tuple[int, int]:
    """Least and greatest value of an integer dtype."""
    if dtype in SIGNED:
        half = 1 << (SIGNED[dtype] - 1)
        return -half, half - 1
    return 0, (1 << UNSIGNED[dtype]) - 1


@dataclass(frozen=True, kw_only=True)
class IndexRange:
    """Every element `x` satisfies `min <= x < below`; a tuple has one bound per position on the last axis."""

    min: int = 0
    below: int | tuple[int, ...]

    @property
    def bounds(self) -> tuple[int, ...]:
        return self.below if isinstance(self.below, tuple) else (self.below,)

    def holds(self, other: IndexRange) -> bool:
        """Whether every element within `other` is within this."""
        if isinstance(self.below, tuple) and isinstance(other.below, tuple):
            fits = all(mine >= theirs for mine, theirs in zip(self.below, other.below, strict=True))
        else:
            fits = min(self.bounds) >= max(other.bounds)
        return fits and self.min <= other.min

    def to_json(self) -> dict[str, Any]:
        return {"min": self.min, "below": list(self.below) if isinstance(self.below, tuple) else self.below}


def read_index_range(value: Any, where: str) -> IndexRange:
    fields = Fields(value, where)
    low, below = fields.integer("min"), _read_bounds(fields.take("below"), fields.place("below"))
    fields.close()
    found = IndexRange(min=low, below=below)
    for bound in found.bounds:
        if bound <= low:
            raise BundleError(f"{where}.below is {bound}; it must be above min, {low}")
    return found


def _read_bounds(value: Any, where: str) -> int | tuple[int, ...]:
    if isinstance(value, list):
        return as_array(value, where, as_integer, 1)
    return as_integer(value, where)


@dataclass(frozen=True, kw_only=True)
class Pad:
    """How rows up to the batch's size are filled: `zero`, `repeat_row` (the first), or `value`."""

    rule: str = "zero"
    value: float = 0

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, **({"value": self.value} if self.rule == "value" else {})}


PAD_RULES = ("zero", "repeat_row", "value")


def read_pad(value: Any, where: str) -> Pad:
    fields = Fields(value, where)
    rule = fields.choice("rule", PAD_RULES)
    found = Pad(rule=rule, value=fields.number("value") if rule == "value" else 0)
    fields.close()
    return found


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """`x` equals the wanted `y` if `abs(x - y) <= absolute + relative * abs(y)`."""

    absolute: float = 0
    relative: float = 0

    def to_json(self) -> dict[str, Any]:
        return {"absolute": self.absolute, "relative": self.relative}


def read_tolerance(value: Any, where: str) -> Tolerance:
    fields = Fields(value, where)
    found = Tolerance(absolute=fields.number("absolute", 0), relative=fields.number("relative", 0))
    fields.close()
    return found


@dataclass(frozen=True, kw_only=True)
class TensorType:
    """What a value is: its dtype and dims, and the range of its elements where it is known."""

    dtype: str
    dims: tuple[Dim, ...]
    index_range: IndexRange | None = None

    @property
    def batch_axis(self) -> int | None:
        return self.dims.index(BATCH) if BATCH in self.dims else None


@dataclass(frozen=True, kw_only=True)
class Tensor(TensorType):
    """An input or output by name. `pad` belongs to inputs of modules, `tolerance` to outputs of signatures."""

    name: str
    pad: Pad | None = None
    tolerance: Tolerance | None = None


@dataclass(frozen=True, kw_only=True)
class Symbol:
    """Bounds of a size that differs between requests, both inclusive."""

    min: int
    max: int

    def to_json(self) -> dict[str, int]:
        return {"min": self.min, "max": self.max}


def read_symbol(value: Any, where: str) -> Symbol:
    fields = Fields(value, where)
    low = fields.integer("min", 1, LARGEST)
    found = Symbol(min=low, max=fields.integer("max", low, LARGEST))
    fields.close()
    return found


def read_symbols(fields: Fields) -> dict[str, Symbol]:
    """The key `symbols` of a module or signature."""
    symbols = fields.table("symbols", read_symbol, NAME)
    if BATCH in symbols:
        raise BundleError(f"{fields.place('symbols')}: 'batch' counts rows and cannot be declared")
    return symbols


def read_dim(value: Any, where: str) -> Dim:
    return as_name(value, where) if isinstance(value, str) else as_integer(value, where, 1, LARGEST)


def read_tensor(value: Any, where: str, *, has_range: bool, has_pad: bool, has_tolerance: bool) -> Tensor:
    """A tensor with the keys of its place; symbols are not looked up."""
    fields = Fields(value, where)
    dtype = fields.choice("dtype", DTYPES)
    tensor = Tensor(
        name=fields.string("name", pattern=NAME),
        dtype=dtype,
        dims=read_dims(fields),
        index_range=fields.optional("index_range", read_index_range) if has_range else None,
        pad=fields.optional("pad", read_pad) if has_pad else None,
        tolerance=read_tolerance(fields.take("tolerance"), fields.place("tolerance")) if has_tolerance else None,
    )
    fields.close()
    check_range(tensor, where)
    if has_pad:
        _check_pad(tensor, where)
    if tensor.tolerance and dtype not in FLOATS and tensor.tolerance != Tolerance():
        raise BundleError(f"{where}.tolerance is {tensor.tolerance.to_json()}; of {dtype} both must be 0")
    return tensor


def read_dims(fields: Fields) -> tuple[Dim, ...]:
    """The keys `dims` and `batch_axis`, which must agree."""
    dims = fields.array("dims", read_dim, 0, LARGEST_RANK)
    axis = fields.optional("batch_axis", as_integer)
    if dims.count(BATCH) > 1:
        raise BundleError(f"{fields.place('dims')} is {list(dims)}; limit: one 'batch'")
    expected = dims.index(BATCH) if BATCH in dims else None
    if axis != expected:
        raise BundleError(f"{fields.place('batch_axis')} is {axis}; dims {list(dims)} say {expected}")
    return dims


def check_range(tensor: TensorType, where: str) -> None:
    """Raises BundleError if the tensor's dtype or dims cannot have its index range."""
    found = tensor.index_range
    if found is None:
        return
    if tensor.dtype not in INTEGERS:
        raise BundleError(f"{where}.index_range: dtype is {tensor.dtype}; choices: {', '.join(INTEGERS)}")
    low, high = integer_limits(tensor.dtype)
    if found.min < low or max(found.bounds) - 1 > high:
        raise BundleError(f"{where}.index_range is {found.to_json()}; limits of {tensor.dtype}: {low} to {high}")
    if isinstance(found.below, tuple) and (not tensor.dims or tensor.dims[-1] != len(found.below)):
        raise BundleError(
            f"{where}.index_range has {len(found.below)} bounds; the last of dims {list(tensor.dims)} differs"
        )


def _check_pad(tensor: Tensor, where: str) -> None:
    if (tensor.pad is None) != (tensor.batch_axis is None):
        raise BundleError(f"{where}.pad is {tensor.pad}; it is null exactly where batch_axis is")
    if tensor.pad is None or tensor.pad.rule == "repeat_row":
        return
    value = tensor.pad.value
    if tensor.dtype in INTEGERS:
        low, high = integer_limits(tensor.dtype)
        if tensor.index_range:
            low, high = tensor.index_range.min, min(tensor.index_range.bounds) - 1
        if not isinstance(value, int) or not low <= value <= high:
            raise BundleError(f"{where}.pad fills with {value}; limits: integers from {low} to {high}")
    elif tensor.dtype == "BOOL" and value not in (0, 1):
        raise BundleError(f"{where}.pad fills with {value}; choices: 0, 1")


def tensor_to_json(tensor: Tensor, *, has_range: bool, has_pad: bool, has_tolerance: bool) -> dict[str, Any]:
    """The inverse of `read_tensor`."""
    found: dict[str, Any] = {"name": tensor.name, **type_to_json(tensor)}
    if has_range:
        found["index_range"] = tensor.index_range.to_json() if tensor.index_range else None
    if has_pad:
        found["pad"] = tensor.pad.to_json() if tensor.pad else None
    if has_tolerance:
        found["tolerance"] = (tensor.tolerance or Tolerance()).to_json()
    return found


def type_to_json(kind: TensorType) -> dict[str, Any]:
    return {"dtype": kind.dtype, "dims": list(kind.dims), "batch_axis": kind.batch_axis}


def check_dims(tensors: Iterable[Tensor], symbols: Mapping[str, Symbol], where: str) -> None:
    """Unique names, declared symbols, and a batch axis of all or of none."""
    seen: set[str] = set()
    axes = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise BundleError(f"{where}: the name {tensor.name!r} is there twice")
        seen.add(tensor.name)
        axes.add(tensor.batch_axis is None)
        for dim in tensor.dims:
            if isinstance(dim, str) and dim != BATCH and dim not in symbols:
                choices = ", ".join((BATCH, *symbols))
                raise BundleError(f"{where}.{tensor.name}: unknown symbol {shown(dim)}; choices: {choices}")
    if len(axes) > 1:
        raise BundleError(f"{where}: a batch axis belongs to all inputs and outputs or to none")
