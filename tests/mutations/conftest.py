"""Which faults are planted: `--patches FOLDER`, relative to the repository."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--patches", default="tests/mutations", metavar="FOLDER", help="folder of the faults to plant")
