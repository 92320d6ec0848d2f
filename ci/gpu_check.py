"""What trunnion-cuda does on this machine's GPU, in one table and at most five minutes: `python ci/gpu_check.py`.

Needs this checkout and torch, no internet and nothing installed beside it. Runs on whatever torch is found and names
what differs from `ci/versions.toml`; uses FlashInfer, Triton and transformers where they are, and says what it leaves
out without them. Exit status: 0, 1 if something failed, 2 if there is no GPU. `--simulated` runs the same over the
simulated device of the package's tests, which tries the script and proves no device.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from importlib.util import find_spec

from device_check.script import DeviceScript
from device_check.table import FAILED, NOTED, PASSED, SKIPPED, Table


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--without-flashinfer", action="store_true", help="as if FlashInfer were not installed")


def _machine(table: Table, options: argparse.Namespace) -> bool:
    hidden = "--without-flashinfer" if options.without_flashinfer else _why_flashinfer_cannot_compile()
    if hidden is not None:
        # Its absence is a choice that the package reports; a spec of None is what `find_spec` gives for it.
        sys.modules["flashinfer"] = None  # type: ignore[assignment]
    import torch

    from trunnion_cuda import environment

    major, minor = torch.cuda.get_device_capability()
    table.add("device", torch.cuda.get_device_name(), PASSED, f"capability {major}.{minor}, CUDA {torch.version.cuda}")
    for problem in environment.problems():
        result = FAILED if problem.fatal else NOTED
        table.add("device", problem.what, result, f"found {problem.found}; needed: {problem.needed}")
    for what, fact in environment.facts().items():
        table.add("device", what, NOTED, fact)
    if (reason := hidden or environment.why_no_flashinfer()) is not None:
        table.add("packages", "flashinfer", NOTED, f"not used ({reason}): attention runs on the package's fallback")
    if find_spec("triton") is None:
        table.add("packages", "triton", SKIPPED, "not installed: what would run on the reference is left out here")
        return False
    return True


def _why_flashinfer_cannot_compile() -> str | None:
    if find_spec("flashinfer") is None or shutil.which("nvcc") or find_spec("flashinfer_jit_cache"):
        return None
    return "no nvcc on PATH and no flashinfer-jit-cache: its modules cannot be compiled"


SCRIPT = DeviceScript(
    hardware="cuda",
    device_type="cuda",
    device="GPU",
    description=__doc__,
    add_options=_add_options,
    machine=_machine,
)

if __name__ == "__main__":
    sys.exit(SCRIPT.main())
