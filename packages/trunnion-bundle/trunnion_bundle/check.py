"""`trunnion bundle check`: whether a bundle is what it says, and rows of a batch are strangers to one another."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from trunnion_bundle import engines, folder, requests
from trunnion_bundle.checks import RequestError, check_request, rows_of
from trunnion_bundle.compare import difference
from trunnion_bundle.contract import Bundle
from trunnion_bundle.errors import BundleError
from trunnion_bundle.lowerings import AotiLowering, PjrtLowering
from trunnion_bundle.requests import Array, Values
from trunnion_bundle.runner import Runner, axis_of
from trunnion_bundle.signatures import Signature
from trunnion_bundle.tensors import FLOATS, IndexRange, Tensor, integer_limits
from trunnion_bundle.weights import key_to_file

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
_SEED = 0
_HOSTILE = (np.nan, np.inf, -np.inf, 1e30, -1e30)
"""What neighbours are filled with where the contract allows any float."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was checked: `what` of `where`, and the reason if it did not pass."""

    what: str
    where: str
    state: str
    reason: str = ""


def check(path: Path | str, *, platform: str | None = None, allow_plugins: bool = False) -> list[Finding]:
    """Check everything about the bundle in `path` that this machine can.

    Args:
        platform: run this lowering only; None: all that run here. The others are reported as skipped.
        allow_plugins: run its plugins, which are code of whoever wrote it; without it a bundle that has some fails.
    """
    try:
        opened = folder.read(path)
    except BundleError as error:
        return [Finding(what="files", where=str(path), state=FAILED, reason=str(error))]
    bundle = opened.bundle
    found = [Finding(what="files", where=f"{len(bundle.files)} files, {len(opened.entries)} changes", state=PASSED)]
    found += _check_weights(opened.folder, bundle)
    for name, signature in bundle.signatures.items():
        found += _check_traps(opened.folder, name, signature)
    found.append(_check_ranges(opened.folder, bundle))
    for name in [platform] if platform else sorted(bundle.lowerings):
        try:
            chosen = engines.choose(bundle, name)
            engine = engines.open_engine(opened.folder, bundle, chosen)
            runner = Runner(opened, chosen, engine, allow_plugins=allow_plugins)
        except BundleError as error:
            state = FAILED if platform or len(bundle.lowerings) == 1 else SKIPPED
            found.append(Finding(what="load", where=name, state=state, reason=str(error)))
            continue
        for signature_name in bundle.signatures:
            found += _check_answers(runner, signature_name)
    return found


def _result(what: str, where: str, reason: str) -> Finding:
    return Finding(what=what, where=where, state=FAILED if reason else PASSED, reason=reason)


def _check_weights(path: Path, bundle: Bundle) -> Iterator[Finding]:
    """Every constant of a lowering is a tensor of the checkpoint, and every tensor is somebody's."""
    try:
        files = key_to_file(path, bundle.weights)
    except BundleError as error:
        yield _result("weights", "checkpoint", str(error))
        return
    used: set[str] = set()
    for platform, lowering in bundle.lowerings.items():
        keys: set[str] = set()
        if isinstance(lowering, AotiLowering):
            keys = {key for module in lowering.modules.values() for key in module.constants.values()}
        elif isinstance(lowering, PjrtLowering):
            arguments = [argument for module in lowering.modules.values() for argument in module.arguments]
            keys = {key for kind, key in arguments if kind == "weight"}
        used |= keys
        missing = sorted(keys - set(files))
        yield _result("weights", platform, f"not in the checkpoint: {', '.join(missing)}" if missing else "")
    if bundle.source:
        used |= {key for keys in bundle.source.tensors.values() for key in keys.values()}
        yield _result("weights", "source", _source_differs(path, bundle, files))
    unused = sorted(set(files) - used)
    yield _result("weights", "checkpoint", f"used by nothing: {', '.join(unused)}" if unused else "")


def _source_differs(path: Path, bundle: Bundle, files: Mapping[str, Path]) -> str:
    """Where shapes of the source's programs are not those of the checkpoint, or ""."""
    assert bundle.source is not None, "the caller has looked"
    for module, keys in bundle.source.tensors.items():
        if missing := sorted(set(keys.values()) - set(files)):
            return f"{module}: not in the checkpoint: {', '.join(missing)}"
    if importlib.util.find_spec("torch") is None:
        return ""
    from torch.export.pt2_archive._package import load_pt2

    programs = load_pt2(str(path / bundle.source.path)).exported_programs
    for module, keys in bundle.source.tensors.items():
        for name, tensor in programs[module].state_dict.items():
            with safe_open(files[keys[name]], "np") as file:
                shape = file.get_slice(keys[name]).get_shape()
            if list(tensor.shape) != list(shape):
                return f"{module}: {name} has shape {list(tensor.shape)}; the checkpoint's {keys[name]} has {shape}"
    return ""


def _check_traps(path: Path, name: str, signature: Signature) -> Iterator[Finding]:
    """An index just outside of its range is refused before the engine sees it."""
    values = requests.read(path / signature.golden[0], "input", signature.inputs)
    for tensor in signature.inputs:
        if tensor.index_range is None:
            continue
        tried = _outside(tensor, tensor.index_range)
        reasons = [_not_trapped(values, tensor, column, value, signature) for column, value in tried]
        yield _result("index range", f"{name}.{tensor.name}", next((reason for reason in reasons if reason), ""))


def _outside(tensor: Tensor, bounds: IndexRange) -> list[tuple[int, int]]:
    """Column and a value that it must not have: one below, one above, the ends of the dtype."""
    low, high = integer_limits(tensor.dtype)
    found = []
    for column, below in enumerate(bounds.bounds):
        found += [(column, value) for value in {bounds.min - 1, below, low, high}
                  if low <= value <= high and not bounds.min <= value < below]  # fmt: skip
    return found


def _not_trapped(values: Values, tensor: Tensor, column: int, value: int, signature: Signature) -> str:
    changed = values[tensor.name].copy()
    changed[(..., column) if changed.ndim else ()] = value
    try:
        check_request({**values, tensor.name: changed}, signature)
    except RequestError:
        return ""
    return f"{value} is let through"


def _check_ranges(path: Path, bundle: Bundle) -> Finding:
    """The modules themselves take every index that their inputs' ranges allow."""
    what, where = "index range", "source"
    if bundle.source is None or importlib.util.find_spec("torch") is None:
        return Finding(what=what, where=where, state=SKIPPED, reason="no source to try the ends of ranges with")
    import torch

    from trunnion_bundle import torch_indices, torch_source

    try:
        programs = torch_source.read_source(path, bundle)
    except BundleError as error:
        return Finding(what=what, where=where, state=SKIPPED, reason=str(error))
    for name, module in bundle.modules.items():
        arguments = torch.utils._pytree.tree_leaves(programs[name].example_inputs)
        if reason := torch_indices.try_ends(programs[name].module(check_guards=False), arguments, module.inputs):
            return _result(what, name, reason)
    return _result(what, where, "")


def _check_answers(runner: Runner, name: str) -> Iterator[Finding]:
    signature = runner.bundle.signatures[name]
    sizes = signature.batching.allowed_sizes
    for path in signature.golden:
        where = f"{runner.platform} {path.removeprefix('golden/').removesuffix('.safetensors')}"
        try:
            asked = requests.read(runner.opened.folder / path, "input", signature.inputs)
            wanted = requests.read(runner.opened.folder / path, "output", signature.outputs)
            yield _result("golden", where, difference(runner.run(name, asked), wanted, signature))
            rows = rows_of(asked, signature.inputs)
            for size in sizes if rows is not None else ():
                yield _result("full batch", f"{where} of {size}", _full_batch(runner, name, asked, wanted, size))
                yield _result("padding", f"{where} of {size}", _padding(runner, name, asked, wanted, size))
                if size > 1:
                    yield _result("neighbours", f"{where} of {size}", _neighbours(runner, name, asked, wanted, size))
        except BundleError as error:
            yield _result("golden", where, str(error))


def _taken(values: Values, tensors: tuple[Tensor, ...], rows: Array) -> Values:
    return {tensor.name: values[tensor.name].take(rows, axis_of(tensor)) for tensor in tensors}


def _rows(values: Values, signature: Signature) -> int:
    rows = rows_of(values, signature.inputs)
    assert rows is not None, "only signatures with a batch axis are cut"
    return rows


def _full_batch(runner: Runner, name: str, asked: Values, wanted: Values, size: int) -> str:
    """The rows in turn fill the batch."""
    signature = runner.bundle.signatures[name]
    rows = np.arange(size) % _rows(asked, signature)
    found = runner.run(name, _taken(asked, signature.inputs, rows), size=size)
    return difference(found, _taken(wanted, signature.outputs, rows), signature)


def _padding(runner: Runner, name: str, asked: Values, wanted: Values, size: int) -> str:
    """A batch that is mostly padding, and one that lacks a row."""
    signature = runner.bundle.signatures[name]
    for count in sorted({1, max(1, size - 1)}):
        rows = np.arange(count) % _rows(asked, signature)
        found = runner.run(name, _taken(asked, signature.inputs, rows), size=size)
        if reason := difference(found, _taken(wanted, signature.outputs, rows), signature):
            return f"{count} rows: {reason}"
    return ""


def _neighbours(runner: Runner, name: str, asked: Values, wanted: Values, size: int) -> str:
    """One row first, in the middle and last among hostile ones."""
    signature = runner.bundle.signatures[name]
    random = np.random.default_rng(_SEED)
    for turn, place in enumerate(sorted({0, size // 2, size - 1})):
        row = np.array([turn % _rows(asked, signature)])
        batch = {}
        for tensor in signature.inputs:
            alone, axis = asked[tensor.name].take(row, axis_of(tensor)), axis_of(tensor)
            crowd = hostile(np.repeat(alone, size, axis), tensor, random)
            slices = [slice(None)] * crowd.ndim
            slices[axis] = slice(place, place + 1)
            crowd[tuple(slices)] = alone
            batch[tensor.name] = crowd
        found = _taken(runner.run(name, batch, size=size), signature.outputs, np.array([place]))
        if reason := difference(found, _taken(wanted, signature.outputs, row), signature):
            return f"row {place}: {reason}"
    return ""


def hostile(like: Array, tensor: Tensor, random: np.random.Generator) -> Array:
    """An array like `like` with the worst that the tensor may hold: NaN, infinities, ends of ranges."""
    if tensor.dtype in FLOATS:
        with np.errstate(over="ignore"):
            return random.choice(np.array(_HOSTILE), like.shape).astype(like.dtype)
    if tensor.index_range:
        top = np.array(tensor.index_range.below) - 1
        return np.where(random.random(like.shape) < 0.5, tensor.index_range.min, top).astype(like.dtype)
    if tensor.dtype == "BOOL":
        return random.random(like.shape) < 0.5
    return random.permuted(like) if like.dtype != object else like.copy()
