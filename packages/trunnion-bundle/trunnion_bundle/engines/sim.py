"""The simulated device: sleeps as long as the lowering says, and answers with simple functions of the input."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trunnion_bundle.contract import Bundle
from trunnion_bundle.lowerings import SimLowering, SimOutput
from trunnion_bundle.requests import NUMPY, Array
from trunnion_bundle.signatures import Module
from trunnion_bundle.tensors import BATCH, Tensor


def refusal(lowering: SimLowering) -> str:
    """Why the lowering cannot run here: never."""
    return ""


def open_engine(folder: Path, bundle: Bundle, lowering: SimLowering) -> SimEngine:
    """The engine of a bundle; nothing is read."""
    return SimEngine(bundle, lowering)


class SimEngine:
    """See docs/format.md, "sim"."""

    def __init__(self, bundle: Bundle, lowering: SimLowering) -> None:
        self._modules = bundle.modules
        self._lowering = lowering

    def run(self, module: str, inputs: Sequence[Array]) -> Sequence[Array]:
        contract, simulated = self._modules[module], self._lowering.modules[module]
        axis = contract.inputs[0].batch_axis
        rows = 1 if axis is None else inputs[0].shape[axis]
        time.sleep((simulated.base_us + rows * simulated.row_us) / 1e6)
        return [
            _output(output, tensor, contract, inputs)
            for output, tensor in zip(simulated.outputs, contract.outputs, strict=True)
        ]


def _output(output: SimOutput, tensor: Tensor, contract: Module, inputs: Sequence[Array]) -> Array:
    index = next(i for i, known in enumerate(contract.inputs) if known.name == output.input)
    value, axis = inputs[index], contract.inputs[index].batch_axis
    if output.function == "echo":
        return value
    others = tuple(i for i in range(value.ndim) if i != axis)
    sums = output.offset + output.scale * value.astype(np.float64).sum(axis=others)
    shape = [-1 if dim == BATCH else 1 for dim in tensor.dims]
    whole = [sums.size if dim == BATCH else int(dim) for dim in tensor.dims]
    return np.broadcast_to(sums.reshape(shape), whole).astype(NUMPY[tensor.dtype])
