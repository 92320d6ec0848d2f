"""Modules (what is compiled) and signatures (what may be asked), and whether a signature's steps fit together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from trunnion_bundle.errors import BundleError
from trunnion_bundle.fields import LARGEST, Fields, as_path
from trunnion_bundle.policy import Batching, read_batching
from trunnion_bundle.steps import MODULE, MOST_STEPS, MOST_VALUES, Step, infer, read_step
from trunnion_bundle.tensors import (
    BATCH,
    BYTES,
    Dim,
    Symbol,
    Tensor,
    TensorType,
    check_dims,
    read_symbols,
    read_tensor,
    tensor_to_json,
)

MOST_FILES = 64
LONGEST_TEXT = 4000

_MODULE_INPUT = {"has_range": True, "has_pad": True, "has_tolerance": False}
_MODULE_OUTPUT = {"has_range": False, "has_pad": False, "has_tolerance": False}
_INPUT = {"has_range": True, "has_pad": False, "has_tolerance": False}
_OUTPUT = {"has_range": False, "has_pad": False, "has_tolerance": True}


@dataclass(frozen=True, kw_only=True)
class Module:
    """A compiled function: its inputs and outputs in order."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    largest_batch: int | None
    """Most rows that it takes; None without a batch axis."""
    symbols: Mapping[str, Symbol] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "inputs": [tensor_to_json(tensor, **_MODULE_INPUT) for tensor in self.inputs],
            "outputs": [tensor_to_json(tensor, **_MODULE_OUTPUT) for tensor in self.outputs],
            "batch": {"min": 1, "max": self.largest_batch} if self.largest_batch else None,
            "symbols": {name: symbol.to_json() for name, symbol in self.symbols.items()},
        }


def read_module(value: Any, where: str) -> Module:
    fields = Fields(value, where)
    found = Module(
        inputs=fields.array("inputs", partial(read_tensor, **_MODULE_INPUT), 1, MOST_VALUES),
        outputs=fields.array("outputs", partial(read_tensor, **_MODULE_OUTPUT), 1, MOST_VALUES),
        largest_batch=fields.optional("batch", _read_largest_batch),
        symbols=read_symbols(fields),
    )
    fields.close()
    for kind, tensors in (("inputs", found.inputs), ("outputs", found.outputs)):
        check_dims(tensors, found.symbols, f"{where}.{kind}")
    has_axis = {tensor.batch_axis is not None for tensor in (*found.inputs, *found.outputs)}
    if has_axis != {found.largest_batch is not None}:
        raise BundleError(
            f"{where}: a batch axis belongs to all inputs and outputs, and to 'batch', or to none of them"
        )
    for tensor in found.inputs:
        if tensor.dtype == BYTES:
            raise BundleError(f"{where}.inputs.{tensor.name}.dtype is BYTES, which only an input of a signature may be")
    used = {dim for tensor in found.inputs for dim in tensor.dims}
    if unused := sorted(set(found.symbols) - used):
        raise BundleError(f"{where}.symbols: no input has {', '.join(unused)}")
    return found


def _read_largest_batch(value: Any, where: str) -> int:
    fields = Fields(value, where)
    fields.integer("min", 1, 1)
    largest = fields.integer("max", 1, LARGEST)
    fields.close()
    return largest


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A question that clients may ask, and how it is answered."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    steps: tuple[Step, ...]
    batching: Batching
    warmup: tuple[str, ...]
    golden: tuple[str, ...]
    symbols: Mapping[str, Symbol] = field(default_factory=dict)
    description: str = ""

    @property
    def module_index(self) -> int:
        """Where in `steps` the module is."""
        return next(i for i, step in enumerate(self.steps) if step.op == MODULE)

    @property
    def module(self) -> str:
        """The name of the module that it calls."""
        return str(self.steps[self.module_index].parameters["module"])

    def to_json(self) -> dict[str, Any]:
        return {
            "description": self.description,
            "inputs": [tensor_to_json(tensor, **_INPUT) for tensor in self.inputs],
            "outputs": [tensor_to_json(tensor, **_OUTPUT) for tensor in self.outputs],
            "symbols": {name: symbol.to_json() for name, symbol in self.symbols.items()},
            "steps": [step.to_json() for step in self.steps],
            "batching": self.batching.to_json(),
            "warmup": list(self.warmup),
            "golden": list(self.golden),
        }


def read_signature(value: Any, where: str, modules: Mapping[str, Module]) -> Signature:
    """A signature whose steps fit together and fit the module.

    Raises:
        BundleError: naming the step, what it was given and what it takes.
    """
    fields = Fields(value, where)
    steps = fields.array("steps", read_step, 1, MOST_STEPS)
    module = _find_module(steps, modules, f"{where}.steps")
    found = Signature(
        description=fields.string("description", longest=LONGEST_TEXT),
        inputs=fields.array("inputs", partial(read_tensor, **_INPUT), 1, MOST_VALUES),
        outputs=fields.array("outputs", partial(read_tensor, **_OUTPUT), 1, MOST_VALUES),
        symbols=read_symbols(fields),
        steps=steps,
        batching=read_batching(fields.take("batching"), fields.place("batching"), module.largest_batch),
        warmup=fields.array("warmup", as_path, 1, MOST_FILES),
        golden=fields.array("golden", as_path, 1, MOST_FILES),
    )
    fields.close()
    check_dims(found.inputs, found.symbols, f"{where}.inputs")
    check_dims(found.outputs, found.symbols, f"{where}.outputs")
    _check_scopes(found, f"{where}.steps")
    values = infer_values(found, modules, where)
    for tensor in found.outputs:
        _check_output(tensor, values, f"{where}.outputs.{tensor.name}")
    if found.inputs[0].batch_axis is None and module.largest_batch is not None:
        raise BundleError(f"{where}: its module has a batch axis, its inputs have none")
    return found


def _find_module(steps: tuple[Step, ...], modules: Mapping[str, Module], where: str) -> Module:
    found = [i for i, step in enumerate(steps) if step.op == MODULE]
    if len(found) != 1:
        raise BundleError(f"{where} has {len(found)} steps with op 'module'; it must have one")
    fields = Fields(steps[found[0]].parameters, f"{where}[{found[0]}].parameters")
    name = fields.choice("module", modules)
    fields.close()
    return modules[name]


def _check_scopes(signature: Signature, where: str) -> None:
    middle = signature.module_index
    wanted = (("request", "batch"), ("batch", "request"))
    for steps, (first, second) in zip((signature.steps[:middle], signature.steps[middle:]), wanted, strict=True):
        scopes = [step.scope for step in steps]
        if scopes != sorted(scopes, key=(first, second).index):
            raise BundleError(f"{where}: scopes {scopes} mix; {first!r} comes first, then {second!r}")
    if signature.steps[middle].scope != "batch":
        raise BundleError(f"{where}[{middle}].scope is 'request'; of a module it is 'batch'")


def infer_values(signature: Signature, modules: Mapping[str, Module], where: str) -> dict[str, TensorType]:
    """The type of every value that exists after the last step."""
    values: dict[str, TensorType] = {tensor.name: tensor for tensor in signature.inputs}
    for i, step in enumerate(signature.steps):
        place = f"{where}.steps[{i}]"
        if unknown := [name for name in step.inputs if name not in values]:
            raise BundleError(f"{place}: there is no value {unknown[0]!r} yet; choices: {', '.join(values)}")
        inputs = tuple(values[name] for name in step.inputs)
        if step.op == MODULE:
            made = _call(modules[step.parameters["module"]], step, inputs, signature.symbols, place)
        else:
            made = infer(step, inputs, signature.symbols, place)
        for name, kind in zip(step.outputs, made, strict=True):
            if name in values:
                raise BundleError(f"{place} makes {name!r}, which exists; every value is made once")
            values[name] = kind
    return values


def _call(
    module: Module, step: Step, inputs: tuple[TensorType, ...], symbols: Mapping[str, Symbol], where: str
) -> tuple[TensorType, ...]:
    for kind, given, wanted in (("inputs", step.inputs, module.inputs), ("outputs", step.outputs, module.outputs)):
        if len(given) != len(wanted):
            raise BundleError(f"{where}.{kind} has {len(given)} names; the module has {len(wanted)}")
    bound: dict[str, Dim] = {}
    for name, kind, wanted in zip(step.inputs, inputs, module.inputs, strict=True):
        _check_argument(kind, wanted, f"{where}: {name!r} as {wanted.name!r}")
        for dim, limit in zip(kind.dims, wanted.dims, strict=True):
            if not _fits(dim, limit, symbols, module.symbols) or bound.setdefault(str(limit), dim) != dim:
                raise BundleError(f"{where}: {name!r} has dims {list(kind.dims)}; the module takes {list(wanted.dims)}")
    return tuple(
        TensorType(dtype=tensor.dtype, dims=tuple(bound.get(str(dim), dim) for dim in tensor.dims))
        for tensor in module.outputs
    )


def _check_argument(kind: TensorType, wanted: Tensor, where: str) -> None:
    if kind.dtype != wanted.dtype or len(kind.dims) != len(wanted.dims):
        raise BundleError(
            f"{where} is {kind.dtype} {list(kind.dims)}; the module takes {wanted.dtype} {list(wanted.dims)}"
        )
    limit = wanted.index_range
    if limit and not (kind.index_range and limit.holds(kind.index_range)):
        known = kind.index_range.to_json() if kind.index_range else "unknown"
        raise BundleError(
            f"{where} may be outside of {limit.to_json()}: its range is {known}; give the signature's input that "
            "index_range, or put a hash_mod or clip before the module"
        )


def _fits(dim: Dim, limit: Dim, symbols: Mapping[str, Symbol], limits: Mapping[str, Symbol]) -> bool:
    """Whether every size that `dim` of a signature can have is one that `limit` of a module takes."""
    if isinstance(limit, int) or BATCH in (dim, limit):
        return dim == limit
    ends = Symbol(min=dim, max=dim) if isinstance(dim, int) else symbols[dim]
    return limits[limit].min <= ends.min and ends.max <= limits[limit].max


def _check_output(tensor: Tensor, values: Mapping[str, TensorType], where: str) -> None:
    if tensor.name not in values:
        raise BundleError(f"{where}: no step makes it; choices: {', '.join(values)}")
    kind = values[tensor.name]
    if (kind.dtype, kind.dims) != (tensor.dtype, tensor.dims):
        raise BundleError(f"{where} is {tensor.dtype} {list(tensor.dims)}; its value is {kind.dtype} {list(kind.dims)}")
