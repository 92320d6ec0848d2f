"""What the tests of the C++ share: its programs, built once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import native_build


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder of the built programs and engines."""
    return native_build.build()
