"""Applies each planted fault to a copy of the repository and runs the test that must notice it.

`--patches hardware/<name>/tests/mutations` takes a package's own faults, on its simulated device if there is one;
`--patches packages/trunnion-bundle/tests/mutations` those of bundles, in one copy whose C++ is built anew where it
changed. A patch opens with a sentence that says the fault, and a line `Red: <test>`. Without the patch that test
passes: a test that is red anyway proves nothing.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COPIED = ("packages/trunnion", "packages/trunnion-host", "models", "tests", "pyproject.toml")
BUNDLE = "packages/trunnion-bundle"
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
    """A copy of what tests run on; `hardware` is the package under test, or ""; `is_bundle`: of bundles alone."""

    folder: Path
    hardware: str = ""
    is_bundle: bool = False

    def apply(self, patch: Path, *options: str) -> None:
        subprocess.run(["git", "apply", "--whitespace=nowarn", *options, str(patch)], cwd=self.folder, check=True)

    @property
    def packages(self) -> tuple[str, ...]:
        """What the copy's tests import."""
        return ("trunnion_bundle",) if self.is_bundle else ("trunnion", "trunnion_models")

    def run(self, *command: str, timeout: float = TIMEOUT_SECONDS) -> subprocess.CompletedProcess[str]:
        own = self.folder / "hardware" / self.hardware
        paths = (self.folder / "packages" / "trunnion", self.folder / "models", own, own / "simulator")
        if self.is_bundle:
            paths = (self.folder / BUNDLE,)
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
        if self.is_bundle:
            # Here rather than in a test, whose time is limited.
            built = self.run(f"{BUNDLE}/tests/native/native_build.py", timeout=9 * TIMEOUT_SECONDS)
            assert built.returncode == 0, built.stderr[-4000:]
        is_simulated = self.hardware and (self.folder / "hardware" / self.hardware / "simulator").is_dir()
        plugin = ("-p", f"{self.hardware}_simulator.plugin") if is_simulated else ()
        return self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *names, timeout=timeout)


def make_checkout(target: Path, pytestconfig: pytest.Config) -> Checkout:
    """A copy in `target` that git takes for a tree of its own."""
    patches = str(pytestconfig.getoption("--patches"))
    parts = Path(patches).parts
    hardware, is_bundle = parts[1] if parts[0] == "hardware" else "", patches.startswith(BUNDLE)
    own = (f"hardware/{hardware}",) if hardware else ()
    for name in (BUNDLE, "pyproject.toml") if is_bundle else (*COPIED, *own):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "build*", ".*"))
        else:
            shutil.copy(source, target / name)
    subprocess.run(["git", "init", "-q", str(target)], check=True)
    return Checkout(target, hardware, is_bundle)


@pytest.fixture(scope="session")
def only_checkout(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Checkout:
    """The one copy of all faults of bundles, whose build is kept from one to the next."""
    return make_checkout(tmp_path_factory.mktemp("bundle"), pytestconfig)


@pytest.fixture
def checkout(
    tmp_path: Path, pytestconfig: pytest.Config, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Checkout]]:
    """Makes a copy of one's own."""
    if not str(pytestconfig.getoption("--patches")).startswith(BUNDLE):
        yield lambda: make_checkout(tmp_path, pytestconfig)
        return
    kept: Checkout = request.getfixturevalue("only_checkout")
    yield lambda: kept
    if "mutation" in request.fixturenames:
        kept.apply(request.getfixturevalue("mutation").path, "--reverse")


@pytest.mark.timeout(10 * TIMEOUT_SECONDS)
def test_without_a_fault_the_tests_pass(checkout: Callable[[], Checkout], pytestconfig: pytest.Config) -> None:
    """All tests that the patches name, on the copy's own sources; those of a folder in one process, as in a session."""
    copy = checkout()
    files = ", ".join(f"{name}.__file__" for name in copy.packages)
    where = copy.run("-c", f"import {', '.join(copy.packages)}; print({files})")
    assert all(Path(file).is_relative_to(copy.folder) for file in where.stdout.split()), where.stdout + where.stderr
    mutations = read_mutations(ROOT / str(pytestconfig.getoption("--patches")))
    tests = sorted({mutation.test for mutation in mutations})
    for _, names in itertools.groupby(tests, key=lambda test: Path(test).parts[:2]):
        result = copy.test(*names, timeout=9 * TIMEOUT_SECONDS)
        assert result.returncode == 0, result.stdout[-4000:] + result.stderr


@pytest.mark.timeout(4 * TIMEOUT_SECONDS)
def test_a_fault_is_noticed(mutation: Mutation, checkout: Callable[[], Checkout]) -> None:
    """The named test fails, and it is a test that fails, not the import of one."""
    copy = checkout()
    copy.apply(mutation.path)
    result = copy.test(mutation.test)
    assert result.returncode == 1, f"{mutation.path.stem} went unnoticed:\n{result.stdout[-4000:]}{result.stderr}"
    assert re.search(r"^\d+ failed", result.stdout.splitlines()[-1]), result.stdout[-4000:]
    # A fault that no longer compiles would be noticed by anything.
    assert not re.search(r"\b(SyntaxError|NameError|ImportError)\b", result.stdout), result.stdout[-4000:]
