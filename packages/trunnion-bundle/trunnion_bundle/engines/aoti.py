"""AOTInductor libraries, by torch's own runner; constants are views of the mapped checkpoint."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trunnion_bundle.contract import Bundle
from trunnion_bundle.errors import BundleError
from trunnion_bundle.host import machine, processor_flags
from trunnion_bundle.lowerings import AotiLowering, AotiModule
from trunnion_bundle.requests import NUMPY, Array, contiguous
from trunnion_bundle.weights import key_to_file

if TYPE_CHECKING:
    import torch

DEVICES = ("cpu", "cuda", "npu")
_OPENING = threading.Lock()
"""Libraries are opened one at a time: constructors of AOTInductor's runners race with one another."""


def refusal(lowering: AotiLowering) -> str:
    """Why the lowering cannot run here, or ""."""
    if lowering.device not in DEVICES:
        return f"the Python runner has no device {lowering.device!r}; it has: {', '.join(DEVICES)}"
    if lowering.machine != machine():
        return f"compiled for {lowering.machine}; this machine is {machine()}"
    if missing := sorted(set(lowering.isa) - processor_flags()):
        return f"this processor has no {', '.join(missing)}"
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    found = torch.__version__.partition("+")[0]
    if found != lowering.torch_version:
        return f"compiled by torch {lowering.torch_version}; here is {found}"
    if lowering.device == "cuda":
        if not torch.cuda.is_available():
            return f"torch {torch.__version__} finds no CUDA device"
        arch = "sm{}{}".format(*torch.cuda.get_device_capability())
        return "" if arch == lowering.device_arch else f"compiled for {lowering.device_arch}; here is {arch}"
    return npu_refusal(lowering.device_arch) if lowering.device == "npu" else ""


def npu_refusal(arch: str | None) -> str:
    """Why no NPU of `arch` can be used here, or ""."""
    if importlib.util.find_spec("torch_npu") is None:
        return "torch_npu is not installed"
    import torch

    try:
        import torch_npu
    except (ImportError, OSError, RuntimeError) as error:
        return f"torch_npu cannot be loaded: {error}"
    if not torch_npu.npu.is_available():
        return f"torch_npu {torch_npu.__version__} finds no NPU"
    if not hasattr(torch._C._aoti, "AOTIModelContainerRunnerNpu"):
        return f"torch_npu {torch_npu.__version__} has no AOTIModelContainerRunnerNpu"
    # "Ascend910B2": kinds of one generation run the same code.
    found = torch_npu.npu.get_device_name().lower()
    return "" if arch is not None and found.startswith(arch) else f"compiled for {arch}; here is {found}"


def open_runner(library: Path, device: str) -> Any:
    """Torch's runner of a library, without constants yet."""
    import torch

    with _OPENING:
        if device == "cuda":
            return torch._C._aoti.AOTIModelContainerRunnerCuda(str(library), 1, device, str(library.parent))
        if device == "npu":
            return torch._C._aoti.AOTIModelContainerRunnerNpu(str(library), 1, device)
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)


def open_engine(folder: Path, bundle: Bundle, lowering: AotiLowering) -> AotiEngine:
    """Open every module's library and give it its constants."""
    files = key_to_file(folder, bundle.weights)
    device = lowering.device
    opened = {name: _open_library(folder, module, files, device) for name, module in lowering.modules.items()}
    return AotiEngine(bundle, opened, device)


def _open_library(folder: Path, module: AotiModule, files: dict[str, Path], device: str) -> Any:
    from safetensors import safe_open

    runner = open_runner(folder / module.library, device)
    known = set(runner.get_constant_names_to_original_fqns())
    if wrong := sorted(known ^ set(module.constants)):
        raise BundleError(f"{module.library}: constants differ from the contract's: {', '.join(wrong)}")
    constants = {}
    for name, key in module.constants.items():
        if key not in files:
            raise BundleError(f"{module.library}: its constant {name!r} is {key!r}, which no file of weights has")
        with safe_open(files[key], "pt") as weights:
            constants[name] = weights.get_tensor(key).to(device)
    runner.update_constant_buffer(constants, False, True, True)
    # The runner does not own its constants.
    return runner, constants


class AotiEngine:
    """One runner a module."""

    def __init__(self, bundle: Bundle, opened: dict[str, Any], device: str) -> None:
        self._modules = bundle.modules
        self._opened = opened
        self._device = device

    def run(self, module: str, inputs: Sequence[Array]) -> Sequence[Array]:
        import torch

        runner, _ = self._opened[module]
        contract = self._modules[module]
        with torch.inference_mode():
            found = runner.run([to_torch(array).to(self._device) for array in inputs])
        return [to_numpy(tensor, kind.dtype) for tensor, kind in zip(found, contract.outputs, strict=True)]


def to_torch(array: Array) -> torch.Tensor:
    """The array as a tensor that shares its memory."""
    import torch

    array = contiguous(array)
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
