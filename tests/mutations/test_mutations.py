"""Applies each planted fault to a copy of the repository and runs the test that must notice it.

`--patches hardware/<name>/tests/mutations` takes a hardware package's own faults, and runs on its simulated device. A
patch opens with a sentence that says the fault, and a line `Red: <test>`. Without the patch that test passes: a test
that is red anyway proves nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COPIED = ("packages/trunnion", "packages/trunnion-host", "models", "tests", "pyproject.toml")
TIMEOUT_SECONDS = 280


@dataclass(frozen=True)
class Mutation:
    """One patch."""

    path: Path
    test: str

    @classmethod
    def read(cls, path: Path) -> Mutation:
        found = re.search(r"^Red: (\S+)$", path.read_text(), re.MULTILINE)
        assert found is not None, f"{path.name} has no line `Red: <test>`"
        return cls(path, found[1])


def read_mutations(folder: Path) -> list[Mutation]:
    """Every patch of a folder."""
    found = [Mutation.read(path) for path in sorted(folder.glob("*.patch"))]
    assert found, f"no patches in {folder}"
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    folder = ROOT / str(metafunc.config.getoption("--patches"))
    if "mutation" in metafunc.fixturenames:
        metafunc.parametrize("mutation", read_mutations(folder), ids=lambda mutation: mutation.path.stem)


@dataclass(frozen=True)
class Checkout:
    """A copy of what tests of a simulator, and of the C++ host, run on; `hardware` is the package under test, or ""."""

    folder: Path
    hardware: str = ""

    def apply(self, patch: Path) -> None:
        subprocess.run(["git", "apply", "--whitespace=nowarn", str(patch)], cwd=self.folder, check=True)

    def run(self, *command: str, timeout: float = TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
        own = self.folder / "hardware" / self.hardware
        paths = (self.folder / "packages" / "trunnion", self.folder / "models", own, own / "simulator")
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, paths)), PYTHONDONTWRITEBYTECODE="1")
        return subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def test(self, *names: str, timeout: float = TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
        plugin = ("-p", f"{self.hardware}_simulator.plugin") if self.hardware else ()
        return self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *names, timeout=timeout)


@pytest.fixture
def checkout(tmp_path: Path, pytestconfig: pytest.Config) -> Callable[[], Checkout]:
    """Makes a copy that git takes for a tree of its own."""
    parts = Path(str(pytestconfig.getoption("--patches"))).parts
    hardware = parts[1] if parts[0] == "hardware" else ""

    def make() -> Checkout:
        for name in (*COPIED, *((f"hardware/{hardware}",) if hardware else ())):
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "build*", ".*"))
            else:
                shutil.copy(source, tmp_path / name)
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
        return Checkout(tmp_path, hardware)

    return make


@pytest.mark.timeout(10 * TIMEOUT_SECONDS)
def test_without_a_fault_the_tests_pass(checkout: Callable[[], Checkout], pytestconfig: pytest.Config) -> None:
    """All tests that the patches name, on the copy's own sources."""
    copy = checkout()
    where = copy.run("-c", "import trunnion, trunnion_models; print(trunnion.__file__, trunnion_models.__file__)")
    assert all(Path(file).is_relative_to(copy.folder) for file in where.stdout.split()), where.stdout + where.stderr
    mutations = read_mutations(ROOT / str(pytestconfig.getoption("--patches")))
    result = copy.test(*sorted({mutation.test for mutation in mutations}), timeout=9 * TIMEOUT_SECONDS)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr


def test_a_fault_is_noticed(mutation: Mutation, checkout: Callable[[], Checkout]) -> None:
    """The named test fails, and it is a test that fails, not the import of one."""
    copy = checkout()
    copy.apply(mutation.path)
    result = copy.test(mutation.test)
    assert result.returncode == 1, f"{mutation.path.stem} went unnoticed:\n{result.stdout[-4000:]}{result.stderr}"
    assert re.search(r"^\d+ failed", result.stdout.splitlines()[-1]), result.stdout[-4000:]
    # A fault that no longer compiles would be noticed by anything.
    assert not re.search(r"\b(SyntaxError|NameError|ImportError)\b", result.stdout), result.stdout[-4000:]
