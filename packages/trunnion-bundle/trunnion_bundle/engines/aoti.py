"""AOTInductor libraries on a CPU, by torch's own runner; constants are views of the mapped checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trunnion_bundle.contract import Bundle
from trunnion_bundle.errors import BundleError
from trunnion_bundle.host import machine, processor_flags
from trunnion_bundle.lowerings import AotiLowering, AotiModule
from trunnion_bundle.requests import NUMPY, Array
from trunnion_bundle.weights import key_to_file

if TYPE_CHECKING:
    import torch

_OPENING = threading.Lock()
"""Libraries are opened one at a time: constructors of AOTInductor's runners race with one another."""


def refusal(lowering: AotiLowering) -> str:
    """Why the lowering cannot run here, or ""."""
    if lowering.device != "cpu":
        return f"the Python runner has no device {lowering.device!r}; it has: cpu"
    if lowering.machine != machine():
        return f"compiled for {lowering.machine}; this machine is {machine()}"
    if missing := sorted(set(lowering.isa) - processor_flags()):
        return f"this processor has no {', '.join(missing)}"
    import torch

    found = torch.__version__.partition("+")[0]
    return "" if found == lowering.torch_version else f"compiled by torch {lowering.torch_version}; here is {found}"


def open_engine(folder: Path, bundle: Bundle, lowering: AotiLowering) -> AotiEngine:
    """Open every module's library and give it its constants."""
    files = key_to_file(folder, bundle.weights)
    opened = {name: _open_library(folder, module, files) for name, module in lowering.modules.items()}
    return AotiEngine(bundle, opened)


def _open_library(folder: Path, module: AotiModule, files: dict[str, Path]) -> Any:
    import torch
    from safetensors import safe_open

    with _OPENING:
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(folder / module.library), 1)
    known = set(runner.get_constant_names_to_original_fqns())
    if wrong := sorted(known ^ set(module.constants)):
        raise BundleError(f"{module.library}: constants differ from the contract's: {', '.join(wrong)}")
    constants = {}
    for name, key in module.constants.items():
        if key not in files:
            raise BundleError(f"{module.library}: its constant {name!r} is {key!r}, which no file of weights has")
        with safe_open(files[key], "pt") as weights:
            constants[name] = weights.get_tensor(key)
    runner.update_constant_buffer(constants, False, True, True)
    # The runner does not own its constants.
    return runner, constants


class AotiEngine:
    """One runner a module."""

    def __init__(self, bundle: Bundle, opened: dict[str, Any]) -> None:
        self._modules = bundle.modules
        self._opened = opened

    def run(self, module: str, inputs: Sequence[Array]) -> Sequence[Array]:
        import torch

        runner, _ = self._opened[module]
        contract = self._modules[module]
        with torch.inference_mode():
            found = runner.run([to_torch(array) for array in inputs])
        return [to_numpy(tensor, kind.dtype) for tensor, kind in zip(found, contract.outputs, strict=True)]


def to_torch(array: Array) -> torch.Tensor:
    """The array as a tensor that shares its memory."""
    import torch

    array = np.ascontiguousarray(array)
    if array.dtype == NUMPY["BF16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor, dtype: str) -> Array:
    """The tensor as an array of a dtype of the wire, which it has."""
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if dtype == "BF16":
        return tensor.view(torch.int16).numpy().view(NUMPY["BF16"])
    return tensor.numpy()
