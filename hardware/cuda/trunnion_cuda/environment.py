"""What this machine has for the package, and what is compiled here and by what: the CUDA part of `trunnion env`."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec

import torch

from trunnion.interfaces.hardware import EnvironmentProblem
from trunnion_cuda import ahead
from trunnion_cuda.ahead.cubins import contents

MINIMUM_CAPABILITY = (8, 0)
"""FlashInfer's and Triton's kernels in bfloat16 start with sm_80."""
PREBUILT_MODULES, PREBUILT_CUBINS = "flashinfer_jit_cache", "flashinfer_cubin"
"""Distributions beside flashinfer-python: its modules compiled ahead, and the binaries that some of them load."""
COMPILERS = ("cc", "gcc", "clang")


def why_no_flashinfer() -> str | None:
    """Why there is no FlashInfer, or None: groups then run on what the package falls back to, and reports say so."""
    return None if find_spec("flashinfer") else "flashinfer-python is not installed"


def why_no_kernels() -> str | None:
    """Why Triton cannot launch here, or None."""
    if find_spec("triton") is None:
        return "triton is not installed"
    # Absent where the package only says its name.
    from triton import knobs

    if torch.version.cuda or knobs.runtime.interpret:
        return None
    return f"torch {torch.__version__} has no CUDA: Triton cannot launch its kernels"


def why_no_times() -> str | None:
    """Why timing a kernel here says nothing, or None."""
    if (reason := why_no_kernels()) is not None:
        return reason
    from triton import knobs

    return (
        "Triton interprets its kernels here, whose times say nothing of a device" if knobs.runtime.interpret else None
    )


def why_no_tilelang() -> str | None:
    """Why TileLang's kernels cannot be compiled and launched here, or None."""
    if find_spec("tilelang") is None:
        return "tilelang is not installed"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    if why_no_times() is not None:
        return f"the device {torch.cuda.get_device_name()!r} runs no compiled kernels, and TileLang has no interpreter"
    return None if shutil.which("nvcc") else "nvcc, which TileLang compiles with, is not on PATH"


def nvcc_users() -> list[str]:
    """What compiles with nvcc on this machine when it first runs."""
    users = []
    if find_spec("flashinfer") and not find_spec(PREBUILT_MODULES):
        users.append("FlashInfer's modules (flashinfer-jit-cache is not installed)")
    if find_spec("tilelang"):
        users.append("TileLang's kernels (block-scaled FP8 weights, decodes on latents)")
    return users


def problems() -> list[EnvironmentProblem]:
    """A device that is new enough, FlashInfer, and the compilers of what is not compiled yet."""
    found = [problem for problem in (_device_problem(),) if problem is not None]
    if (reason := why_no_flashinfer()) is not None:
        needed = "its attention kernels; without them attention runs on the package's fallback"
        found.append(EnvironmentProblem(what="FlashInfer", found=reason, needed=needed, fatal=False))
    if shutil.which("nvcc") is None and (users := nvcc_users()):
        needed = f"the CUDA toolkit, by {' and '.join(users)}"
        found.append(EnvironmentProblem(what="nvcc", found="not on PATH", needed=needed, fatal=False))
    if not any(map(shutil.which, COMPILERS)):
        needed = f"one of {', '.join(COMPILERS)}: Triton compiles its launcher"
        found.append(EnvironmentProblem(what="C compiler", found="not on PATH", needed=needed, fatal=False))
    return found


def facts() -> Mapping[str, str]:
    """Lines of `trunnion env` that are no problems."""
    users = nvcc_users()
    nvcc = shutil.which("nvcc")
    return {
        "nvcc": f"{nvcc or 'not on PATH'}; needed by {' and '.join(users)}" if users else "not needed",
        "kernels": _kernels(),
        "FlashInfer": "not installed" if why_no_flashinfer() else f"modules {_modules()}, binaries {_binaries()}",
    }


def _kernels() -> str:
    if not ahead.FOLDER.is_dir():
        return "compiled by Triton and TileLang at first use"
    found = ", ".join(f"{count} for {name}" for name, count in sorted(contents(ahead.FOLDER).items()))
    return f"cubins of this wheel: {found}; launches without one are compiled by Triton, and reported"


def _modules() -> str:
    return "prebuilt" if find_spec(PREBUILT_MODULES) else "compiled at first use"


def _binaries() -> str:
    return "prebuilt" if find_spec(PREBUILT_CUBINS) else "downloaded at first use, by kernels that have some"


def _device_problem() -> EnvironmentProblem | None:
    if not torch.cuda.is_available():
        built = f"torch {torch.__version__} for CUDA {torch.version.cuda or 'none'}"
        return EnvironmentProblem(what="CUDA device", found=f"none ({built})", needed="a GPU and driver", fatal=True)
    found = torch.cuda.get_device_capability()
    if found >= MINIMUM_CAPABILITY:
        return None
    needed = f">={_dotted(MINIMUM_CAPABILITY)}"
    return EnvironmentProblem(what="compute capability", found=_dotted(found), needed=needed, fatal=True)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))
