"""StableHLO programs on JAX's CPU client: the programs of the bundle themselves, not a retraced function."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trunnion_bundle.contract import Bundle
from trunnion_bundle.errors import BundleError
from trunnion_bundle.lowerings import PjrtLowering, PjrtModule, PjrtProgram
from trunnion_bundle.requests import Array
from trunnion_bundle.signatures import Module
from trunnion_bundle.tensors import BATCH
from trunnion_bundle.weights import key_to_file

PLATFORM = "cpu"
"""Of the plugin that JAX carries itself."""


def refusal(lowering: PjrtLowering) -> str:
    """Why the lowering cannot run here, or ""."""
    if lowering.program == "executable":
        return "the Python runner compiles StableHLO; precompiled executables run in the C++ runtime"
    if PLATFORM not in lowering.platforms:
        return f"exported for {', '.join(lowering.platforms)}; the Python runner has: {PLATFORM}"
    return "" if importlib.util.find_spec("jax") else "jax is not installed"


def open_engine(folder: Path, bundle: Bundle, lowering: PjrtLowering) -> PjrtEngine:
    """Compile every program, and put the weights on the device once."""
    import jax
    from jax.extend.backend import get_backend
    from safetensors import safe_open

    client = get_backend(PLATFORM)
    device = client.local_devices()[0]
    files = key_to_file(folder, bundle.weights)
    weights: dict[str, Any] = {}
    for module in lowering.modules.values():
        for kind, key in module.arguments:
            if kind != "weight" or key in weights:
                continue
            if key not in files:
                raise BundleError(f"the argument {key!r} is in no file of weights; they have: {', '.join(files)}")
            with safe_open(files[key], "np") as file, jax.enable_x64(True):
                weights[key] = jax.device_put(file.get_tensor(key), device)
    programs = {
        (name, program.path): client.compile_and_load((folder / program.path).read_bytes(), [device])
        for name, module in lowering.modules.items()
        for program in module.programs
    }
    return PjrtEngine(bundle, lowering, weights, programs, device)


class PjrtEngine:
    """One executable for each size of each module."""

    def __init__(
        self,
        bundle: Bundle,
        lowering: PjrtLowering,
        weights: Mapping[str, Any],
        programs: Mapping[Any, Any],
        device: Any,
    ) -> None:
        self._modules = bundle.modules
        self._lowering = lowering
        self._weights = weights
        self._programs = programs
        self._device = device

    def run(self, module: str, inputs: Sequence[Array]) -> Sequence[Array]:
        import jax

        contract, lowered = self._modules[module], self._lowering.modules[module]
        program = find_program(lowered, contract, inputs)
        given = {tensor.name: array for tensor, array in zip(contract.inputs, inputs, strict=True)}
        with jax.enable_x64(True):
            index = np.int32(self._lowering.platforms.index(PLATFORM))
            arguments = [jax.device_put(index, self._device)] if len(self._lowering.platforms) > 1 else []
            for i in program.kept:
                kind, name = lowered.arguments[i]
                arguments.append(self._weights[name] if kind == "weight" else jax.device_put(given[name], self._device))
            found = self._programs[module, program.path].execute(arguments)
        return [np.asarray(array) for array in found]


def find_program(lowered: PjrtModule, contract: Module, inputs: Sequence[Array]) -> PjrtProgram:
    """The program of the size that `inputs` have."""
    sizes: dict[str, int] = {}
    for tensor, array in zip(contract.inputs, inputs, strict=True):
        sizes |= {dim: size for dim, size in zip(tensor.dims, array.shape, strict=True) if isinstance(dim, str)}
    batch = sizes.pop(BATCH, None)
    for program in lowered.programs:
        if program.batch == batch and dict(program.symbols) == sizes:
            return program
    known = [(program.batch, dict(program.symbols)) for program in lowered.programs]
    raise BundleError(f"no program for {batch} rows and sizes {sizes}; there are: {known}")
