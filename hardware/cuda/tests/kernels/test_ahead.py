"""Cubins of a wheel: signatures are Triton's own, general kernels cover more, and launches reach a (fake) driver."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trunnion_cuda
from trunnion_cuda.ahead.cubins import INDEX, Cubins, StaleCubinsError, contents
from trunnion_cuda.ahead.driver import Driver, DriverError
from trunnion_cuda.ahead.signature import Signature, signature_of
from trunnion_cuda.compile.cases import cases
from trunnion_cuda.kernels import norm
from trunnion_cuda.kernels.launch import recorded_launches

PACKAGE = Path(trunnion_cuda.__file__).parent
SCRIPT = Path(__file__).resolve().parents[1] / "ahead_wheel.py"
TIMEOUT_SECONDS = 280

COMPARE = """
import sys
from triton.runtime import driver
from trunnion_cuda.compile.absent_device import AbsentDevice
from trunnion_cuda.compile.cases import cases
from trunnion_cuda.compile.report import recorded
from trunnion_cuda.ahead.signature import signature_of
device = AbsentDevice()
driver.set_active(device)
count = 0
for case in cases():
    for launch in recorded(case, every_configuration=False):
        binder = launch.kernel.device_caches[device.capability][-1]
        _, found, _ = binder(*launch.args, **launch.constants, debug=False, instrumentation_mode="")
        ours = signature_of(launch.kernel, launch.args, launch.constants)
        for (type, fact), mine, known in zip(found, ours.types, ours.known):
            theirs = ("i32", "1") if type == "constexpr" else (type, "16" if fact == "D" else "")
            assert theirs == (mine, known), (case.name, type, fact, mine, known)
        count += 1
print(count)
"""


def run(*command: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """In a process of its own, in which Triton's driver is whatever it makes it."""
    first = [str(path)] if path else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*first, *sys.path])}
    return subprocess.run(
        (sys.executable, *command), capture_output=True, text=True, env=environment, timeout=TIMEOUT_SECONDS
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as a wheel with cubins holds it."""
    folder = tmp_path_factory.mktemp("site")
    copy = folder / "trunnion_cuda"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    options = ("--out", str(copy / "ahead" / "cubins"), "--case", "rms_norm", "--arch", "sm_90a", "--quick")
    result = run("-m", "trunnion_cuda.ahead", *options)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "2 kernels to compile" in result.stdout
    return folder


def test_signatures_are_tritons_own() -> None:
    """What a launch is specialised for must be what Triton would have specialised it for."""
    result = run("-c", COMPARE)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout) >= len(cases())


def test_a_cubin_is_launched_without_compiling(site: Path) -> None:
    result = run(str(SCRIPT), path=site)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout == "2 cubins for sm_90a, 3 launched without compiling\n"


def test_the_environment_counts_cubins(site: Path) -> None:
    assert contents(site / "trunnion_cuda" / "ahead" / "cubins") == {"sm_90a": 2}
    result = run("-c", "from trunnion_cuda import environment; print(environment.facts()['kernels'])", path=site)
    assert result.stdout.startswith("cubins of this wheel: 2 for sm_90a;"), result.stderr


def test_cubins_of_other_sources_are_refused(site: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cubins"
    shutil.copytree(site / "trunnion_cuda" / "ahead" / "cubins", folder)
    index = folder / INDEX
    index.write_text(index.read_text().replace('"sources":"', '"sources":"0'))
    with pytest.raises(StaleCubinsError, match="build it again"):
        Cubins(folder, None, "sm_90a", 1 << 20, lambda: 0)  # type: ignore[arg-type]


def test_what_does_not_fit_the_device_is_left_out(site: Path) -> None:
    folder = site / "trunnion_cuda" / "ahead" / "cubins"
    sizes = [len(Cubins(folder, None, name, shared, lambda: 0)) for name, shared in (  # type: ignore[arg-type]
        ("sm_90a", 1 << 20), ("sm_90a", 1 << 10), ("sm_80", 1 << 20), (None, 1 << 20))]  # fmt: skip
    assert sizes == [2, 1, 0, 0]


def norm_signature(x: torch.Tensor) -> Signature:
    with recorded_launches() as launches:
        norm.rms_norm(x, torch.ones(x.shape[-1]), 1e-6, False)
    return signature_of(launches[0].kernel, launches[0].args, launches[0].constants)


def test_a_general_kernel_covers_what_a_special_one_does_not() -> None:
    special, odd = norm_signature(torch.ones(5, 2048)), norm_signature(torch.ones(5, 2047))
    assert special.family == odd.family
    assert special.covers(special) and not special.covers(odd)
    assert special.general().covers(special) and special.general().covers(odd)
    # A pointer that is not aligned has no cubin: reads of several elements at once would fault.
    assert not special.general().covers(norm_signature(torch.ones(5 * 2048 + 1)[1:].view(5, 2048)))
    assert Signature.from_json(special.as_json()) == special


def test_an_error_of_the_driver_is_raised() -> None:
    class Failing:
        def cuModuleLoadData(self, *args: object) -> int:
            return 209

    with pytest.raises(DriverError, match="cuModuleLoadData failed with CUresult 209"):
        Driver(Failing()).load(b"", "name", 0)  # type: ignore[arg-type]
