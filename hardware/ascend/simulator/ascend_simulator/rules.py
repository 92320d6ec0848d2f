"""How the rule of an operator is declared, and how its arguments are read from what the library wrote down.

A rule is a function whose parameters are, in order, those of the operator's entry point in CANN; their annotations say
what they are in C. It computes with torch on the CPU, on the memory that the call names, and writes its results there.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import torch

from ascend_simulator.formats import FRACTAL_NZ, from_fractal

DTYPES = {
    0: torch.float32,
    1: torch.float16,
    2: torch.int8,
    3: torch.int32,
    4: torch.uint8,
    6: torch.int16,
    7: torch.uint16,
    8: torch.uint32,
    9: torch.int64,
    10: torch.uint64,
    11: torch.float64,
    12: torch.bool,
    16: torch.complex64,
    17: torch.complex128,
    27: torch.bfloat16,
    35: torch.float8_e5m2,
    36: torch.float8_e4m3fn,
}
"""aclDataType -> torch's."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Operand:
    """A tensor as a handle has it: its memory, and how that is to be read."""

    handle: int
    format: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    storage_sizes: tuple[int, ...]
    storage: torch.Tensor
    """Flat: the elements from the start of the storage to the last one that the view has."""

    def view(self) -> torch.Tensor:
        """The tensor over the memory itself; a fractal one is laid out in rows, and is a copy.

        The transpose of a fractal matrix is a view of it (ops-nn/matmul/mat_mul_v3/docs/aclnnMatmulWeightNz.md).
        """
        if self.format == FRACTAL_NZ:
            if self.is_transposed:
                swapped = (*self.sizes[:-2], self.sizes[-1], self.sizes[-2])
                return from_fractal(self.storage, self.storage_sizes, swapped).transpose(-1, -2)
            return from_fractal(self.storage, self.storage_sizes, self.sizes)
        return self.storage.as_strided(self.sizes, self.strides, self.offset)

    @property
    def is_transposed(self) -> bool:
        """Whether the last dimension lies across the rows of the matrix that it is a view of."""
        return len(self.sizes) > 1 and self.strides[-2] == 1 and self.strides[-1] == self.sizes[-2] != 1


class Reader:
    """Reads arguments from their row of integers, from left to right."""

    def __init__(self, words: Sequence[int]) -> None:
        self._words = words
        self._next = 0

    def integer(self) -> int:
        self._next += 1
        return self._words[self._next - 1]

    def integers(self, count: int) -> tuple[int, ...]:
        self._next += count
        return tuple(self._words[self._next - count : self._next])

    def number(self) -> float:
        return float(struct.unpack("d", struct.pack("q", self.integer()))[0])

    def truth(self) -> bool:
        return bool(self.integer())

    def text(self) -> str:
        return "".join(map(chr, self.integers(self.integer())))

    def dtype(self) -> torch.dtype:
        return DTYPES[self.integer()]

    def operand(self) -> Operand | None:
        handle = self.integer()
        if handle == 0:
            return None
        dtype = self.dtype()
        layout, address, elements, offset, dims = self.integers(5)
        sizes, strides = self.integers(dims), self.integers(dims)
        storage_sizes = self.integers(self.integer())
        if layout == FRACTAL_NZ:
            elements = torch.Size(storage_sizes).numel()
        storage = _memory(address, elements, dtype)
        return Operand(handle, layout, sizes, strides, offset, storage_sizes, storage)

    def tensor(self) -> torch.Tensor | None:
        operand = self.operand()
        return None if operand is None else operand.view()

    def scalar(self) -> Any:
        code = self.integer()
        if code < 0:
            return None
        value = torch.frombuffer(bytearray(struct.pack("qq", *self.integers(2))), dtype=DTYPES[code])[0]
        return value.item()

    def array(self, read: Callable[[Reader], Any]) -> list[Any] | None:
        count = self.integer()
        return None if count < 0 else [read(self) for _ in range(count)]


def _memory(address: int, elements: int, dtype: torch.dtype) -> torch.Tensor:
    empty = torch.empty(0, dtype=dtype)
    if elements == 0:
        return empty
    storage = torch._C._construct_storage_from_data_pointer(address, CPU, elements * dtype.itemsize)
    return empty.set_(storage, 0, (elements,), (1,))


@dataclass(frozen=True)
class Kind:
    """What a parameter is in C, and how it is read."""

    c_type: str
    read: Callable[[Reader], Any]


Tensor = Annotated[torch.Tensor, Kind("const aclTensor*", Reader.tensor)]
Raw = Annotated[Operand, Kind("const aclTensor*", Reader.operand)]
Tensors = Annotated[list[torch.Tensor], Kind("const aclTensorList*", lambda reader: reader.array(Reader.tensor))]
Scalar = Annotated[Any, Kind("const aclScalar*", Reader.scalar)]
Scalars = Annotated[list[Any], Kind("const aclScalarList*", lambda reader: reader.array(Reader.scalar))]
Ints = Annotated[list[int], Kind("const aclIntArray*", lambda reader: reader.array(Reader.integer))]
Floats = Annotated[list[float], Kind("const aclFloatArray*", lambda reader: reader.array(Reader.number))]
Bools = Annotated[list[bool], Kind("const aclBoolArray*", lambda reader: reader.array(Reader.truth))]
Int = Annotated[int, Kind("int64_t", Reader.integer)]
Int32 = Annotated[int, Kind("int32_t", Reader.integer)]
Int8 = Annotated[int, Kind("int8_t", Reader.integer)]
Double = Annotated[float, Kind("double", Reader.number)]
Float = Annotated[float, Kind("float", Reader.number)]
Bool = Annotated[bool, Kind("bool", Reader.truth)]
Text = Annotated[str, Kind("const char*", Reader.text)]
Dtype = Annotated[torch.dtype, Kind("int32_t", Reader.dtype)]


@dataclass(frozen=True)
class Rule:
    """What one operator does, and where that is written."""

    name: str
    source: str
    function: Callable[..., None]
    kinds: tuple[Kind, ...]
    check: Callable[..., int] | None = None
    """Called with the same arguments when the workspace is asked for: its bytes, or an error for what CANN refuses."""

    def arguments(self, words: Sequence[int]) -> list[Any]:
        reader = Reader(words)
        return [kind.read(reader) for kind in self.kinds]

    def entry_points(self) -> str:
        """The operator's functions in C++; none for one that the library itself calls by this name."""
        if self.name.startswith(BUILT_IN):
            return ""
        names = [f"p{index}" for index in range(len(self.kinds))]
        parameters = "".join(f"{kind.c_type} {name}, " for kind, name in zip(self.kinds, names, strict=True))
        values = {"name": self.name, "parameters": parameters, "arguments": ", ".join(names)}
        return (CHECKED if self.check else UNCHECKED).format(**values)


BUILT_IN = "atb::"
"""How operators begin whose entry points are C++ classes, written by hand (`cann/atb.cpp`)."""
PROLOGUE = '#include "operators.h"\n'
LAUNCH = """
extern "C" int {name}(void*, uint64_t bytes, aclOpExecutor* executor, aclrtStream stream) {{
    return sim::launch(executor, bytes, stream);
}}
"""
UNCHECKED = (
    """
extern "C" int {name}GetWorkspaceSize({parameters}uint64_t* bytes, aclOpExecutor** executor) {{
    return sim::prepare("{name}", false, sim::write_down({arguments}), bytes, executor);
}}"""
    + LAUNCH
)
CHECKED = (
    """
extern "C" int {name}GetWorkspaceSize({parameters}uint64_t* bytes, aclOpExecutor** executor) {{
    return sim::prepare("{name}", true, sim::write_down({arguments}), bytes, executor);
}}
extern "C" int {name}GetMaxWorkspaceSize({parameters}uint64_t* bytes, aclOpExecutor** executor) {{
    return sim::prepare("{name}", true, sim::write_down({arguments}), bytes, executor);
}}"""
    + LAUNCH
)


@dataclass(frozen=True)
class Rules:
    """What `rule` makes of a function: a rule for each of its names."""

    rules: tuple[Rule, ...]

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __add__(self, other: Rules) -> Rules:
        return Rules(self.rules + other.rules)


def rule(
    *names: str,
    source: str,
    check: Callable[..., int] | None = None,
    reads: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., None]], Rules]:
    """Declares a function as the rule of operators that have the same parameters.

    Args:
        names: entry points of CANN, without their `GetWorkspaceSize`.
        source: the public text that the rule follows: a file of a repository of github.com/hicann or /Ascend.
        check: see `Rule.check`.
        reads: has the operator's parameters, and makes one of them that `check` and the function take instead.
    """

    def declare(function: Callable[..., None]) -> Rules:
        return Rules(
            tuple(
                Rule(name, source, _after(reads, function), _kinds(reads or function), check and _after(reads, check))
                for name in names
            )
        )

    return declare


def _after(reads: Callable[..., Any] | None, function: Callable[..., Any]) -> Callable[..., Any]:
    return function if reads is None else lambda *arguments: function(reads(*arguments))


def _kinds(function: Callable[..., Any]) -> tuple[Kind, ...]:
    hints = get_type_hints(function, include_extras=True)
    return tuple(_kind(hints[name]) for name in inspect.signature(function).parameters)


def _kind(hint: Any) -> Kind:
    """The `Kind` of an annotation; one that may be None has the same."""
    if get_origin(hint) is not Annotated:
        hint = next(part for part in get_args(hint) if get_origin(part) is Annotated)
    return next(part for part in get_args(hint) if isinstance(part, Kind))
