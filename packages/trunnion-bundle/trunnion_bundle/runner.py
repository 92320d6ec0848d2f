"""Answers requests with a bundle from Python: the same steps, programs and weights as the C++ runtime, no batching."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from trunnion_bundle import engines, folder
from trunnion_bundle.checks import RequestError, check_request, rows_of
from trunnion_bundle.contract import Bundle
from trunnion_bundle.engines import Engine
from trunnion_bundle.errors import BundleError
from trunnion_bundle.operators import Compute, prepare_all
from trunnion_bundle.requests import NUMPY, Array, Values, contiguous
from trunnion_bundle.signatures import Module, Signature
from trunnion_bundle.tensors import Tensor, TensorType


def load(path: Path | str, *, platform: str | None = None, hashes: bool = True, allow_plugins: bool = False) -> Runner:
    """Open the bundle in the folder `path`.

    Args:
        platform: the lowering to run; None: the best that this machine can run.
        hashes: compare the SHA-256 of every file; otherwise its size only.
        allow_plugins: run the plugins of the bundle, which are code of whoever wrote it.

    Raises:
        BundleError: the bundle is not valid, or no lowering runs here, with the reason of each.
    """
    opened = folder.read(path, hashes=hashes)
    name = engines.choose(opened.bundle, platform)
    engine = engines.open_engine(opened.folder, opened.bundle, name)
    return Runner(opened, name, engine, allow_plugins=allow_plugins)


class Runner:
    """A bundle that answers: `runner(x=array, ids=array)` or `runner.run("signature", {...})`."""

    def __init__(self, opened: folder.Opened, platform: str, engine: Engine, *, allow_plugins: bool = False) -> None:
        self.opened = opened
        self.platform = platform
        self._engine = engine
        self._computes: dict[str, list[Compute | None]] = {
            name: prepare_all(signature, opened.bundle.modules, opened.folder, allow_plugins=allow_plugins)
            for name, signature in opened.bundle.signatures.items()
        }

    @property
    def bundle(self) -> Bundle:
        """The contract."""
        return self.opened.bundle

    def __call__(self, signature: str | None = None, /, **inputs: Array) -> Values:
        """As `run`, with the inputs as keywords."""
        return self.run(signature, inputs)

    def run(self, signature: str | None, inputs: Mapping[str, Array], *, size: int | None = None) -> Values:
        """The outputs of a signature (None: the default one), each with as many rows as the inputs.

        Args:
            size: rows that the engine is given, padded; None: the first allowed size that holds the request.

        Raises:
            RequestError: the request is not what the signature says.
        """
        name = signature or self.bundle.default_signature
        if name not in self.bundle.signatures:
            raise BundleError(f"unknown signature {name!r}; choices: {', '.join(self.bundle.signatures)}")
        contract = self.bundle.signatures[name]
        values = check_request(inputs, contract)
        rows = rows_of(values, contract.inputs)
        parts = [values]
        if rows is not None and size is None:
            parts = _split(values, contract, rows)
        answers = [self._run_part(name, contract, part, size) for part in parts]
        return _joined(answers, contract.outputs)

    def _run_part(self, name: str, contract: Signature, part: Values, size: int | None) -> Values:
        rows = rows_of(part, contract.inputs)
        whole = _allowed(contract, rows) if size is None else size

        def call(inputs: Sequence[Array]) -> Sequence[Array]:
            return self._call(contract.module, inputs, rows, whole)

        return run_steps(contract, self._computes[name], part, call)

    def _call(self, name: str, inputs: Sequence[Array], rows: int | None, size: int | None) -> list[Array]:
        module = self.bundle.modules[name]
        _check_sizes(inputs, module)
        if rows is not None and size is not None:
            inputs = [padded(array, tensor, size) for array, tensor in zip(inputs, module.inputs, strict=True)]
        found = self._engine.run(name, inputs)
        for array, tensor in zip(found, module.outputs, strict=True):
            if array.dtype != NUMPY[tensor.dtype] or array.ndim != len(tensor.dims):
                raise BundleError(f"module {name!r} gave {array.dtype} {array.shape} for {tensor.name}, which is "
                                  f"{tensor.dtype} {list(tensor.dims)}")  # fmt: skip
        if rows is None:
            return list(found)
        return [array.take(range(rows), axis_of(tensor)) for array, tensor in zip(found, module.outputs, strict=True)]


def run_steps(
    signature: Signature,
    computes: Sequence[Compute | None],
    values: Values,
    call: Callable[[Sequence[Array]], Sequence[Array]],
) -> Values:
    """The outputs of a signature whose checked inputs are `values`.

    Args:
        computes: the operators of its steps; None where `call` computes the module.
    """
    values = dict(values)
    for step, compute in zip(signature.steps, computes, strict=True):
        inputs = [values[name] for name in step.inputs]
        found = call(inputs) if compute is None else compute(inputs)
        # An operator may have outputs that the step does not name.
        values |= dict(zip(step.outputs, found, strict=False))
    return {tensor.name: values[tensor.name] for tensor in signature.outputs}


def _check_sizes(inputs: Sequence[Array], module: Module) -> None:
    for array, tensor in zip(inputs, module.inputs, strict=True):
        for size, dim in zip(array.shape, tensor.dims, strict=True):
            symbol = module.symbols.get(str(dim))
            if symbol and not symbol.min <= size <= symbol.max:
                raise RequestError(f"{tensor.name}: {dim} is {size}; limits: {symbol.min} to {symbol.max}")


def _allowed(contract: Signature, rows: int | None) -> int | None:
    sizes = contract.batching.allowed_sizes
    return None if rows is None else next(size for size in sizes if size >= rows)


def _split(values: Values, contract: Signature, rows: int) -> list[Values]:
    """Requests of at most the last allowed size."""
    last = contract.batching.allowed_sizes[-1]
    if rows > last and contract.batching.oversize == "refuse":
        raise RequestError(f"{rows} rows; limit: {last}, and the policy refuses more")
    return [
        {
            tensor.name: values[tensor.name].take(range(start, min(start + last, rows)), axis_of(tensor))
            for tensor in contract.inputs
        }
        for start in range(0, rows, last)
    ]


def _joined(answers: Sequence[Values], tensors: Sequence[Tensor]) -> Values:
    if len(answers) == 1:
        return answers[0]
    return {
        tensor.name: np.concatenate([answer[tensor.name] for answer in answers], axis_of(tensor)) for tensor in tensors
    }


def axis_of(tensor: TensorType) -> int:
    """The batch axis of a tensor that has one."""
    assert tensor.batch_axis is not None, "only values with a batch axis are cut and joined"
    return tensor.batch_axis


def padded(array: Array, tensor: Tensor, size: int) -> Array:
    """`array` with rows up to `size` filled by the tensor's rule.

    Raises:
        RequestError: the array has more rows than `size`.
    """
    axis = axis_of(tensor)
    missing = size - array.shape[axis]
    if missing < 0:
        raise RequestError(f"{array.shape[axis]} rows do not fit into a batch of {size}")
    if missing == 0:
        return contiguous(array)
    pad = tensor.pad
    assert pad is not None, "a tensor with a batch axis has a rule"
    if pad.rule == "repeat_row":
        filling = np.repeat(array.take([0], axis), missing, axis)
    else:
        shape = (*array.shape[:axis], missing, *array.shape[axis + 1 :])
        filling = np.full(shape, pad.value if pad.rule == "value" else 0, array.dtype)
    # Of arrays in another order numpy makes one in that order.
    return contiguous(np.concatenate([array, filling], axis))
