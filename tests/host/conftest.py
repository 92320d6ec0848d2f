"""Builds the C++ side once per test session, out of tree, and runs its programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
HOST_PACKAGE = REPOSITORY / "packages" / "trunnion-host"


def tool(name: str) -> str:
    """A build tool beside this interpreter or on the PATH."""
    places = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])
    found = shutil.which(name, path=places)
    if found is None:
        pytest.fail(f"{name} is not installed; it is needed to build trunnion-host")
    return found


def cmake_build(source: Path, build: Path, *definitions: str, targets: Sequence[str] = ()) -> Path:
    """Configure and build `source` in `build`; a failure carries the compiler's output."""
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    configure = [tool("cmake"), "-S", str(source), "-B", str(build), *generator, *definitions]
    command = [tool("cmake"), "--build", str(build), "--parallel", "2"]
    if targets:
        command += ["--target", *targets]
    for step in (configure, command):
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.fail(f"{' '.join(step)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return build


@dataclass(frozen=True, kw_only=True)
class HostRun:
    """What one run of the C host printed: lines as words, and its exit code."""

    returncode: int
    lines: list[list[str]]
    stderr: str

    def of(self, kind: str) -> list[list[str]]:
        """The lines that start with `kind`, without it."""
        return [line[1:] for line in self.lines if line[0] == kind]

    @property
    def stats(self) -> dict[str, int]:
        return {key: int(value) for key, value in (item.split("=") for item in self.of("stats")[0])}


def run_host(command: Sequence[str], *, timeout: float = 120, env: dict[str, str] | None = None) -> HostRun:
    done = subprocess.run(list(command), capture_output=True, text=True, timeout=timeout, check=False, env=env)
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    return HostRun(returncode=done.returncode, lines=lines, stderr=done.stderr)


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C host in every shape, the libraries and the embed example."""
    return cmake_build(HERE, tmp_path_factory.mktemp("host"), f"-DPython_EXECUTABLE={sys.executable}")


@pytest.fixture(scope="session")
def null_host(build: Path) -> Callable[..., HostRun]:
    """Run the C host against the library without Python."""

    def run(*arguments: str) -> HostRun:
        return run_host([str(build / "host"), *arguments])

    return run
