"""Kernels that nothing imports by itself, as far as public tools take them without CANN: Triton's in its interpreter
and to Linalg for the chips, TileLang's to Ascend C.

The tools lie apart, in a folder of the environment, whose own distributions they would shadow.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "trunnion_ascend"
APART = Path(sys.prefix) / "apart"
TRITON, TILELANG = "trunnion_ascend.kernels.triton_kernels", "trunnion_ascend.kernels.tilelang_kernels"
KERNELS = {"gated_delta_decode_kernel", "rotary_cache_write_kernel"}


def _needs(path: str, name: str, what: str) -> pytest.MarkDecorator:
    reason = f"{what}: no {name} in {APART} (apart.ascend of ci/versions.toml)"
    return pytest.mark.skipif(not (APART / path).is_dir(), reason=reason)


needs_triton = _needs(
    "triton/backends/ascend", "triton-ascend", "kernels in Triton were neither interpreted nor lowered"
)
needs_tilelang = _needs("tilelang/ascend", "tilelang", "the kernel in TileLang was not lowered")


def run_apart(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python with the tools before all that this process imports from; they need no torch_npu."""
    path = os.pathsep.join((str(APART), *filter(None, sys.path)))
    environment = dict(os.environ, PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0", **variables)
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500)


@needs_triton
def test_numbers_of_triton_kernels_are_the_references() -> None:
    """Both kernels, in float32 and bfloat16, by triton-ascend's own interpreter."""
    file = str(HERE / "leaf_kernels" / "interpreted.py")
    done = run_apart("-m", "pytest", "-q", "-p", "no:cacheprovider", file, TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr


@needs_triton
@pytest.mark.parametrize("arch", ["Ascend910B3", "Ascend910_9391"])
def test_triton_kernels_are_lowered_to_linalg(tmp_path: Path, arch: str) -> None:
    """For vector cores, and what they read and write is copied in blocks: nothing is gathered element by element."""
    report = tmp_path / "lowered.json"
    done = run_apart("-m", f"{TRITON}.lower", "--arch", arch, "--json", str(report), TRITON_CACHE_DIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    assert {kernel for outcome in found for kernel in KERNELS if f"@{kernel}(" in outcome["linalg"]} == KERNELS
    for outcome in found:
        assert outcome["stages"][:2] == ["ttir", "ttadapter"]
        assert 'mix_mode = "aiv"' in outcome["linalg"] and "memref.copy" in outcome["linalg"]
        assert "DiscreteMemAccess" not in outcome["linalg"], f"{outcome['name']} moves element by element"
        if "ASCEND_HOME_PATH" not in os.environ:
            assert outcome["stopped"].startswith("npubin: ASCEND_HOME_PATH is not set"), outcome["stopped"]


@needs_tilelang
def test_the_tilelang_kernel_is_lowered_to_ascend_c() -> None:
    """Copied in, turned by threads of a vector core, copied out; nothing is run."""
    done = run_apart("-m", f"{TILELANG}.silu_gate")
    assert done.returncode == 0, done.stdout + done.stderr
    for part in ("__vector__ void silu_gate_kernel(", "asc_copy_gm2ub_align", "expf(", "asc_copy_ub2gm_align"):
        assert part in done.stdout, f"{part} is not in the source:\n{done.stdout}"


@pytest.mark.parametrize("folder", ["triton_kernels", "tilelang_kernels"])
def test_nothing_imports_them_by_itself(folder: str) -> None:
    """The package runs where their tools are not."""
    own = PACKAGE / "kernels" / folder
    others = [path for path in PACKAGE.rglob("*.py") if own not in path.parents]
    assert not [path for path in others if folder in path.read_text()]
