"""Kernels to cubins without a GPU: what is found in them, and that spills and missing tensor cores are faults."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trunnion_cuda.compile.cases import cases
from trunnion_cuda.compile.cubin import Usage
from trunnion_cuda.compile.report import SPILLS, Line, Spill, fault_of
from trunnion_cuda.compile.tile import SHARED_MEMORY, tile_cases
from trunnion_cuda.kernels import kernels
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, recorded_launches

TIMEOUT_SECONDS = 280
ALL_SECONDS = 3600
"""Of every configuration of every kernel for one architecture, where nothing is kept from an earlier run."""


def compile_cases(tmp_path: Path, *options: str, timeout: float = TIMEOUT_SECONDS) -> list[dict]:
    """In a process of its own: Triton's driver is the whole process's."""
    file = tmp_path / "lines.json"
    command = (sys.executable, "-m", "trunnion_cuda.compile", *options, "--json", str(file))
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-3000:]
    return json.loads(file.read_text())


def test_quick_cases_compile(tmp_path: Path) -> None:
    lines = compile_cases(tmp_path, "--quick", "--without-tilelang")
    wanted = {(case.name, a) for case in cases() if case.quick for a in ("sm_80", "sm_90a") if a in case.architectures}
    assert {(line["case"], line["architecture"]) for line in lines} == wanted
    for line in lines:
        assert 0 < line["registers"] <= 255 and line["fault"] is None
        assert line["shared"] <= SHARED_MEMORY[line["architecture"]], line


def test_quick_tilelang_kernels_compile(tmp_path: Path) -> None:
    chosen = [option for case in tile_cases() if case.quick for option in ("--case", case.name)]
    lines = compile_cases(tmp_path, *chosen, "--arch", "sm_90a")
    assert {line["kernel"] for line in lines} == {"block_fp8_gemm", "mla_decode"}
    assert all(line["mma"] for line in lines)


@pytest.mark.nightly
@pytest.mark.timeout(ALL_SECONDS)
@pytest.mark.parametrize("architecture", EVERY_ARCHITECTURE)
def test_every_configuration_compiles(architecture: str, tmp_path: Path) -> None:
    lines = compile_cases(tmp_path, "--arch", architecture, "--without-tilelang", timeout=ALL_SECONDS)
    assert {line["case"] for line in lines} == {case.name for case in cases() if architecture in case.architectures}
    assert all(line["shared"] <= SHARED_MEMORY[architecture] for line in lines)


@pytest.mark.nightly
@pytest.mark.timeout(ALL_SECONDS)
@pytest.mark.parametrize("case", [case.name for case in tile_cases()])
def test_every_tilelang_configuration_compiles(case: str, tmp_path: Path) -> None:
    assert compile_cases(tmp_path, "--case", case, timeout=ALL_SECONDS)


def _line(**changes: object) -> Line:
    values = {"case": "a", "kernel": "b", "options": "", "architecture": "sm_90a", "registers": 1, "shared": 0}
    return Line(**{**values, "stack": 0, "mma": (), **changes})


def test_a_spill_must_be_listed() -> None:
    usage = Usage(registers=255, stack=24, shared=0, mma=())
    listed = {("a", "b", "sm_90a"): Spill(stack=16, reason="of the test")}
    assert fault_of(_line(), usage, None, {}) == "spills 24 bytes per thread, none listed"
    assert fault_of(_line(), usage, None, listed) == "spills 24 bytes per thread, 16 listed"
    assert fault_of(_line(), Usage(255, 16, 0, ()), None, listed) is None


def test_claimed_tensor_cores_must_be_used() -> None:
    ampere, hopper = Usage(1, 0, 0, ("HMMA.16816",)), Usage(1, 0, 0, ("HGMMA.64", "HMMA.1688"))
    assert fault_of(_line(), ampere, "wgmma", {}) == "has no wgmma, but HMMA.16816"
    assert fault_of(_line(), Usage(1, 0, 0, ()), "mma.sync", {}) == "has no mma.sync, but no tensor core instruction"
    assert fault_of(_line(), hopper, "wgmma", {}) is None and fault_of(_line(), hopper, "mma.sync", {}) is None
    assert fault_of(_line(), Usage(1, 0, 0, ("UTCHMMA",)), "tcgen05.mma", {}) is None


def test_spills_that_are_listed_belong_to_cases() -> None:
    names = {case.name for case in (*cases(), *tile_cases())}
    assert {case for case, _, _ in SPILLS} <= names
    assert all(spill.stack > 0 and spill.reason for spill in SPILLS.values())


def test_every_kernel_has_a_case() -> None:
    """Each Triton kernel of the package is launched by some case."""
    launched = set()
    for case in cases():
        with recorded_launches() as launches:
            case.call()
        launched |= {launch.kernel.__name__ for launch in launches}
    folder = Path(sys.modules[kernels.__module__].__file__).parent
    defined = {
        line.removeprefix("def ").partition("(")[0]
        for path in folder.glob("*.py")
        for line in path.read_text().splitlines()
        if line.startswith("def _") and "_kernel(" in line
    }
    assert defined and launched == defined


def test_every_operator_is_there_under_its_name() -> None:
    import trunnion.ops  # noqa: F401
    from trunnion.ops.registry import OPERATORS

    assert set(kernels()) <= set(OPERATORS.names())
