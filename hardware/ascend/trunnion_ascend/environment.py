"""What this machine has for the package: torch_npu, CANN, a known NPU. The Ascend part of `trunnion env`."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from trunnion.interfaces.hardware import EnvironmentProblem
from trunnion_ascend.soc import soc_of

CANN_FOLDERS = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""Variables that CANN's `set_env.sh` sets to where it is installed."""
AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""With 0 torch does not import torch_npu by itself; otherwise `import torch` fails where there is no CANN."""


@functools.cache
def why_no_torch_npu() -> str | None:
    """Why torch_npu cannot be imported here, or None; it is imported by this question, once."""
    if find_spec("torch_npu") is None:
        return "torch_npu is not installed"
    try:
        # Where CANN's environment is not set it prints so, and stdout may be a command's JSON.
        with redirect_stdout(sys.stderr):
            importlib.import_module("torch_npu")
    except Exception as error:  # whatever it says: its libraries look for CANN's when they are loaded
        return f"torch_npu cannot be imported: {str(error).partition(chr(10))[0]}"
    return None


def num_devices() -> int:
    """NPUs that torch_npu finds; 0 without it."""
    if why_no_torch_npu() is not None or not torch.npu.is_available():
        return 0
    return int(torch.npu.device_count())


def why_no_device() -> str | None:
    """Why there is no NPU to run on, or None."""
    return None if num_devices() else why_no_torch_npu() or "torch_npu finds no NPU"


def problems() -> list[EnvironmentProblem]:
    """A torch_npu that is made for this torch and can be imported, CANN behind it, and a device of a known family."""
    found = [problem for problem in (_versions_problem(), _device_problem()) if problem is not None]
    if find_spec("torch_npu") is not None and why_no_torch_npu() is not None and cann() is None:
        needed = f"an installation that {' or '.join(CANN_FOLDERS)} names, as its set_env.sh does"
        found.append(EnvironmentProblem(what="CANN", found="none", needed=needed, fatal=False))
    return found


def facts() -> Mapping[str, str]:
    """Lines of `trunnion env` that are no problems."""
    autoload = os.environ.get(AUTOLOAD, "1")
    when = "only when asked" if autoload == "0" else "by itself"
    return {
        "torch_npu": _version("torch_npu") or "not installed",
        "CANN": str(cann() or "none"),
        "device": torch.npu.get_device_name(0) if num_devices() else "none",
        "autoload": f"{AUTOLOAD}={autoload}: torch imports torch_npu {when}",
    }


def cann() -> Path | None:
    """Where CANN is installed, if its environment is set."""
    named = (Path(os.environ[name]) for name in CANN_FOLDERS if os.environ.get(name))
    return next((folder for folder in named if folder.is_dir()), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _versions_problem() -> EnvironmentProblem | None:
    """torch_npu's libraries are linked against one release of torch, the one whose number they carry."""
    found, wanted = _version("torch_npu"), torch.__version__.partition("+")[0]
    if found is None or _release(found) == _release(wanted):
        return None
    return EnvironmentProblem(what="torch_npu", found=found, needed=f"the one for torch {wanted}", fatal=True)


def _release(version: str) -> list[str]:
    """Major, minor and patch: a fourth part is torch_npu's own."""
    return version.partition("+")[0].replace("rc", ".").replace("post", ".").split(".")[:3]


def _device_problem() -> EnvironmentProblem | None:
    if (reason := why_no_device()) is not None:
        return EnvironmentProblem(
            what="NPU", found=f"none, {reason}", needed="a device, its driver and CANN", fatal=True
        )
    try:
        soc_of(torch.npu.get_device_name(0))
    except ValueError as error:
        return EnvironmentProblem(what="NPU", found=str(error), needed="one of these", fatal=True)
    return None
