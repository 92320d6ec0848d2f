"""Steps of a signature: the closed set of operators, their parameters, and the types of the values that they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import (
    LARGEST,
    Fields,
    as_integer,
    as_name,
    as_number,
    as_path,
    ascending,
)
from trunnion_bundle.tensors import (
    BATCH,
    BYTES,
    INTEGERS,
    SAFETENSORS,
    Dim,
    IndexRange,
    Symbol,
    TensorType,
    check_range,
    integer_limits,
    read_dims,
    read_index_range,
)

SCOPES = ("request", "batch")
MOST_STEPS = 64
MOST_VALUES = 64
COMPUTED = ("FP32", "FP64")
"""dtypes of operators that compute with reals."""
MASKS = ("INT64", "INT32", "BOOL", "FP32")
LIBRARIES = re.compile("linux-x86_64|linux-aarch64")
MODULE = "module"


@dataclass(frozen=True, kw_only=True)
class Step:
    """One operator: it reads values by name and makes new ones."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    scope: str = "batch"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """As in JSON; checked when the types of its outputs are asked for."""

    def to_json(self) -> dict[str, Any]:
        lists = {"inputs": list(self.inputs), "outputs": list(self.outputs)}
        return {"op": self.op, "scope": self.scope, **lists, "parameters": dict(self.parameters)}


def read_step(value: Any, where: str) -> Step:
    fields = Fields(value, where)
    found = Step(
        op=fields.choice("op", OPERATORS),
        scope=fields.choice("scope", SCOPES),
        inputs=fields.array("inputs", as_name, 1, MOST_VALUES),
        outputs=fields.array("outputs", as_name, 1, MOST_VALUES),
        parameters=fields.take("parameters"),
    )
    fields.close()
    return found


@dataclass(frozen=True, kw_only=True)
class Scene:
    """What an operator's types are inferred from."""

    step: Step
    inputs: tuple[TensorType, ...]
    symbols: Mapping[str, Symbol]
    """Of the signature."""
    parameters: Fields
    where: str

    def only_input(self, *dtypes: str) -> TensorType:
        """The single input, of one of `dtypes` if any are named."""
        return self.input_of(1, 1, *dtypes)

    def input_of(self, low: int, high: int, *dtypes: str) -> TensorType:
        """The first of `low` to `high` inputs."""
        if not low <= len(self.inputs) <= high:
            raise BundleError(f"{self.where}: {self.step.op} has {len(self.inputs)} inputs; limits: {low} to {high}")
        found, choices = self.inputs[0], dtypes or tuple(SAFETENSORS)
        if found.dtype not in choices:
            raise BundleError(f"{self.where}: {self.step.op} of {found.dtype}; choices: {', '.join(choices)}")
        return found

    def axis(self, kind: TensorType) -> int:
        """The parameter `axis`, which is one of `kind` other than the batch axis."""
        axis = self.parameters.integer("axis")
        choices = [i for i, dim in enumerate(kind.dims) if dim != BATCH]
        if axis not in choices:
            raise BundleError(f"{self.where}.axis is {axis}; choices: {', '.join(map(str, choices)) or 'none'}")
        return axis

    def size(self, kind: TensorType, axis: int) -> int:
        """A dim that is the same in all requests."""
        dim = kind.dims[axis]
        if not isinstance(dim, int):
            raise BundleError(f"{self.where}: axis {axis} is {dim!r}; {self.step.op} needs one size of all requests")
        return dim

    def last_axis(self, kind: TensorType) -> int:
        if not kind.dims or kind.dims[-1] == BATCH:
            raise BundleError(f"{self.where}: {self.step.op} needs a last axis that is not the batch's")
        return len(kind.dims) - 1

    def padded_dim(self) -> Dim:
        """The dim that the parameters `lengths` and `symbol` make."""
        place = self.parameters.place("lengths")
        lengths = ascending(
            self.parameters.array("lengths", lambda size, at: as_integer(size, at, 1, LARGEST), 1), place
        )
        symbol = self.parameters.optional("symbol", as_name)
        if self.step.scope != "request":
            raise BundleError(f"{self.where}: {self.step.op} has scope {self.step.scope!r}; choices: request")
        if len(lengths) == 1 and symbol is None:
            return lengths[0]
        ends = Symbol(min=lengths[0], max=lengths[-1])
        if symbol is None or self.symbols.get(symbol) != ends:
            raise BundleError(
                f"{self.where}.symbol is {symbol!r}; lengths {list(lengths)} need a symbol of the signature with min "
                f"{ends.min} and max {ends.max}"
            )
        return symbol


def _cast(scene: Scene) -> list[TensorType]:
    kind = scene.only_input()
    dtype = scene.parameters.choice("dtype", SAFETENSORS)
    return [TensorType(dtype=dtype, dims=kind.dims, index_range=_fitting(kind.index_range, dtype))]


def _fitting(found: IndexRange | None, dtype: str) -> IndexRange | None:
    if found is None or dtype not in INTEGERS:
        return None
    low, high = integer_limits(dtype)
    return found if low <= found.min and max(found.bounds) - 1 <= high else None


def _clip(scene: Scene) -> list[TensorType]:
    kind = scene.only_input()
    is_integer = kind.dtype in INTEGERS
    read = as_integer if is_integer else as_number
    low, high = scene.parameters.optional("min", read), scene.parameters.optional("max", read)
    if (low is None and high is None) or (low is not None and high is not None and low > high):
        raise BundleError(f"{scene.where}: min is {low}, max is {high}; min <= max, and one of them is not null")
    if is_integer:
        least, most = integer_limits(kind.dtype)
        for bound in (low, high):
            if bound is not None and not least <= bound <= most:
                raise BundleError(f"{scene.where}: {bound} is outside of {kind.dtype}: {least} to {most}")
    # Of the old range nothing is kept: a bound beyond it would make it empty.
    known = is_integer and low is not None and high is not None
    found = IndexRange(min=int(low), below=int(high) + 1) if known else None
    return [TensorType(dtype=kind.dtype, dims=kind.dims, index_range=found)]


def _hash_mod(scene: Scene) -> list[TensorType]:
    kind = scene.only_input(*INTEGERS, BYTES)
    rows = scene.parameters.take("rows")
    place = scene.parameters.place("rows")
    if isinstance(rows, list):
        below = tuple(as_integer(bound, f"{place}[{i}]", 1, LARGEST) for i, bound in enumerate(rows))
        if scene.size(kind, scene.last_axis(kind)) != len(below):
            raise BundleError(f"{place} has {len(below)} elements; the last axis has {kind.dims[-1]}")
        found = IndexRange(below=below)
    else:
        found = IndexRange(below=as_integer(rows, place, 1, LARGEST))
    scene.parameters.integer("seed", 0)
    return [TensorType(dtype="INT64", dims=kind.dims, index_range=found)]


def _normalize(scene: Scene) -> list[TensorType]:
    kind = scene.only_input()
    axis = scene.axis(kind)
    mean = scene.parameters.array("mean", as_number, 1)
    std = scene.parameters.array("std", lambda value, at: as_number(value, at, 0, above=True), 1)
    for name, values in (("mean", mean), ("std", std)):
        if len(values) > 1 and scene.size(kind, axis) != len(values):
            raise BundleError(f"{scene.where}.{name} has {len(values)} elements; axis {axis} has {kind.dims[axis]}")
    return [TensorType(dtype="FP32", dims=kind.dims)]


def _pad(scene: Scene) -> list[TensorType]:
    kind = scene.only_input()
    axis = scene.axis(kind)
    dims = (*kind.dims[:axis], scene.padded_dim(), *kind.dims[axis + 1 :])
    value = scene.parameters.number("value")
    found = kind.index_range
    if kind.dtype in INTEGERS:
        low, high = integer_limits(kind.dtype)
        as_integer(value, f"{scene.where}.value", low, high)
        # One bound a position is no bound of a position that was not there.
        is_inside = found is not None and found.min <= value < min(found.bounds)
        keeps_bounds = found is not None and (isinstance(found.below, int) or axis != len(dims) - 1)
        found = found if is_inside and keeps_bounds else None
    return [TensorType(dtype=kind.dtype, dims=dims, index_range=found)]


def _mask(scene: Scene) -> list[TensorType]:
    kind = scene.only_input(*INTEGERS)
    low, high = integer_limits(kind.dtype)
    scene.parameters.integer("value", low, high)
    dtype = scene.parameters.choice("dtype", MASKS)
    return [TensorType(dtype=dtype, dims=kind.dims, index_range=IndexRange(below=2) if dtype in INTEGERS else None)]


def _pool(scene: Scene) -> list[TensorType]:
    kind = scene.input_of(1, 2, *COMPUTED)
    axis = scene.axis(kind)
    how = scene.parameters.choice("kind", ("mean", "sum", "max", "first"))
    if len(scene.inputs) == 2:
        mask = scene.inputs[1]
        if how == "first" or mask.dtype not in MASKS or mask.dims != kind.dims[: axis + 1]:
            raise BundleError(
                f"{scene.where}: a mask of {mask.dtype} {list(mask.dims)} for kind {how!r}; choices: kinds mean, sum, "
                f"max; dtypes {', '.join(MASKS)}; dims {list(kind.dims[: axis + 1])}"
            )
    return [TensorType(dtype=kind.dtype, dims=(*kind.dims[:axis], *kind.dims[axis + 1 :]))]


def _l2_normalize(scene: Scene) -> list[TensorType]:
    kind = scene.only_input(*COMPUTED)
    scene.axis(kind)
    scene.parameters.number("epsilon", 0, above=True)
    return [TensorType(dtype=kind.dtype, dims=kind.dims)]


def _sigmoid(scene: Scene) -> list[TensorType]:
    kind = scene.only_input(*COMPUTED)
    return [TensorType(dtype=kind.dtype, dims=kind.dims)]


def _softmax(scene: Scene) -> list[TensorType]:
    kind = scene.only_input(*COMPUTED)
    scene.axis(kind)
    return [TensorType(dtype=kind.dtype, dims=kind.dims)]


def _top_k(scene: Scene) -> list[TensorType]:
    kind = scene.only_input(*INTEGERS, *COMPUTED)
    size = scene.size(kind, scene.last_axis(kind))
    dims = (*kind.dims[:-1], scene.parameters.integer("k", 1, size))
    values = TensorType(dtype=kind.dtype, dims=dims)
    return [values, TensorType(dtype="INT64", dims=dims, index_range=IndexRange(below=size))]


def _word_piece(scene: Scene) -> list[TensorType]:
    kind = scene.only_input(BYTES)
    if kind.dims != (BATCH,):
        raise BundleError(f"{scene.where}: word_piece of dims {list(kind.dims)}; choices: ['batch']")
    path = as_path(scene.parameters.take("vocabulary"), scene.parameters.place("vocabulary"))
    if not path.startswith("assets/"):
        raise BundleError(f"{scene.where}.vocabulary is {path!r}; it must lie under assets/")
    size = scene.parameters.integer("vocabulary_size", 1, LARGEST)
    scene.parameters.boolean("lowercase")
    scene.parameters.integer("max_chars_per_word", 1, LARGEST)
    dims = (BATCH, scene.padded_dim())
    ends = (size, 2, 1)
    return [TensorType(dtype="INT64", dims=dims, index_range=IndexRange(below=below)) for below in ends]


def _plugin(scene: Scene) -> list[TensorType]:
    paths = scene.parameters.table("libraries", as_path, LIBRARIES, 1)
    for path in paths.values():
        if not path.startswith("plugins/"):
            raise BundleError(f"{scene.where}.libraries: {path!r} must lie under plugins/")
    scene.parameters.string("configuration", longest=LARGEST)
    kinds = _declared_outputs(scene.parameters)
    known = {BATCH, *scene.symbols}
    if unknown := sorted({str(dim) for kind in kinds for dim in kind.dims if isinstance(dim, str)} - known):
        raise BundleError(f"{scene.where}.outputs: unknown {unknown[0]!r}; choices: {', '.join(sorted(known))}")
    return kinds


def _declared_outputs(parameters: Fields) -> list[TensorType]:
    kinds = parameters.array("outputs", _read_type, 1, MOST_VALUES)
    ranges = parameters.array("index_ranges", _read_optional_range)
    if len(ranges) != len(kinds):
        raise BundleError(f"{parameters.where}.index_ranges has {len(ranges)} elements; outputs has {len(kinds)}")
    found = [replace(kind, index_range=bounds) for kind, bounds in zip(kinds, ranges, strict=True)]
    for i, kind in enumerate(found):
        check_range(kind, f"{parameters.where}.outputs[{i}]")
    return found


def plugin_outputs(step: Step) -> list[TensorType]:
    """The outputs that a `plugin` step declares."""
    return _declared_outputs(Fields(step.parameters, "parameters"))


def _read_optional_range(value: Any, where: str) -> IndexRange | None:
    return None if value is None else read_index_range(value, where)


def _read_type(value: Any, where: str) -> TensorType:
    fields = Fields(value, where)
    found = TensorType(dtype=fields.choice("dtype", SAFETENSORS), dims=read_dims(fields))
    fields.close()
    return found


Infer = Callable[[Scene], list[TensorType]]

_INFER: Mapping[str, Infer] = {
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
    "word_piece": _word_piece,
    "plugin": _plugin,
}
OPERATORS = (MODULE, *_INFER)
OPTIONAL_OUTPUTS = {"word_piece": 1}
"""How many of an operator's last outputs may be left out."""


def infer(
    step: Step, inputs: tuple[TensorType, ...], symbols: Mapping[str, Symbol], where: str
) -> tuple[TensorType, ...]:
    """Types of the outputs of any operator but `module`.

    Raises:
        BundleError: the operator cannot take these inputs or parameters.
    """
    parameters = Fields(step.parameters, f"{where}.parameters")
    scene = Scene(step=step, inputs=inputs, symbols=symbols, parameters=parameters, where=f"{where}.parameters")
    found = _INFER[step.op](scene)
    parameters.close()
    low = len(found) - OPTIONAL_OUTPUTS.get(step.op, 0)
    if not low <= len(step.outputs) <= len(found):
        raise BundleError(f"{where}.outputs has {len(step.outputs)} names; {step.op} makes {low} to {len(found)}")
    return tuple(found[: len(step.outputs)])


def asset_paths(step: Step) -> list[str]:
    """Files of the bundle that a step reads."""
    if step.op == "word_piece":
        return [step.parameters["vocabulary"]]
    return sorted(step.parameters["libraries"].values()) if step.op == "plugin" else []
