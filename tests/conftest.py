"""What conformance and matrix share: `--hardware NAME_OR_FOLDER` picks the package under test."""

from __future__ import annotations

from pathlib import Path

import pytest

from trunnion import registry
from trunnion.interfaces.hardware import Hardware


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hardware",
        default="cpu",
        metavar="NAME_OR_FOLDER",
        help="hardware package under test: an installed name, or the folder of one that is not installed",
    )


@pytest.fixture(scope="session")
def hardware(pytestconfig: pytest.Config) -> Hardware:
    """The package under test."""
    choice = pytestconfig.getoption("--hardware")
    return registry.load_hardware_from(Path(choice)) if Path(choice).is_dir() else registry.hardware(choice)
