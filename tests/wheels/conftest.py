"""The folder of built wheels, and one fresh environment that they are installed into."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dist", default="dist/cpu", help="folder that `nox -s wheels-<hardware>` wrote")
    parser.addoption("--ahead", help="folder that `nox -s wheels-<hardware> -- --aot` wrote")


@pytest.fixture(scope="session")
def dist(pytestconfig: pytest.Config) -> Path:
    """The folder with wheels, constraints.txt and SHA256SUMS."""
    folder = ROOT / str(pytestconfig.getoption("--dist"))
    assert list(folder.glob("*.whl")), f"no wheels in {folder}; run `nox -s wheels-{folder.name}`"
    return folder


@pytest.fixture(scope="session")
def ahead(pytestconfig: pytest.Config) -> Path:
    """The folder of the wheel whose kernels were compiled ahead."""
    folder = pytestconfig.getoption("--ahead")
    if folder is None:
        pytest.skip("built without --aot")
    return ROOT / str(folder)


@pytest.fixture(scope="session")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheels in it, under their constraints."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    subprocess.run((sys.executable, "-m", "venv", str(folder)), check=True)
    wheels = [str(path) for path in dist.glob("*.whl")]
    command = (
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        str(dist / "constraints.txt"),
        *wheels,
    )
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder / "bin"
