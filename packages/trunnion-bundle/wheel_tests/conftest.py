"""The folder of built wheels, and one fresh environment that they are installed into, with torch and a client."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--dist", default="dist/bundle", help="folder that `nox -s wheels-bundle` wrote")


@pytest.fixture(scope="session")
def dist(pytestconfig: pytest.Config) -> Path:
    """The folder with wheels, constraints.txt and SHA256SUMS."""
    folder = ROOT / str(pytestconfig.getoption("--dist"))
    assert list(folder.glob("*.whl")), f"no wheels in {folder}; run `nox -s wheels-bundle`"
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("trunnion_bundle-*.whl")
    return found


@pytest.fixture(scope="session")
def installed(dist: Path, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheels in it, under their constraints."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    subprocess.run((sys.executable, "-m", "venv", str(folder)), check=True)
    (common,) = dist.glob("trunnion-*.whl")
    wanted = (f"{wheel}[torch,client]", str(common))
    command = (
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-q",
        "-c",
        str(dist / "constraints.txt"),
        *wanted,
    )
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder / "bin"
