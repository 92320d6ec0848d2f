"""Runs the tests of interpreted/, one process per file: numerics of the Triton kernels on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent / "interpreted"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
TIMEOUT_SECONDS = 280


def run(file: str, marks: str) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(FOLDER / file), "-m", marks)
    environment = dict(os.environ, TRITON_INTERPRET="1")
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout, f"nothing ran:\n{result.stdout}"


@pytest.mark.parametrize("file", FILES)
def test_kernels_equal_the_reference(file: str) -> None:
    run(file, "not nightly")


@pytest.mark.nightly
@pytest.mark.parametrize("file", [file for file in FILES if "nightly" in (FOLDER / file).read_text()])
def test_kernels_equal_the_reference_at_more_shapes(file: str) -> None:
    run(file, "nightly")
