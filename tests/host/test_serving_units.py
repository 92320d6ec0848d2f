"""The serving host's C++ tests, each as one test here; under the sanitizers every night."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from .conftest import HOST_PACKAGE, cmake_build

SOURCES = sorted((HOST_PACKAGE / "tests").glob("test_*.cc"))
NAMES = [name for source in SOURCES for name in re.findall(r"^TEST\((\w+)\)", source.read_text(), flags=re.MULTILINE)]


@pytest.fixture(scope="module")
def serving_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cmake_build(HOST_PACKAGE / "tests", tmp_path_factory.mktemp("serving")) / "serving_tests"


def run(program: Path, *names: str, timeout: float = 120, **environment: str) -> str:
    done = subprocess.run(
        [str(program), *names],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return done.stdout


@pytest.mark.parametrize("overlap", ["0", "1"], ids=["plain", "overlap"])
@pytest.mark.parametrize("name", NAMES)
def test_serving(serving_tests: Path, name: str, overlap: str) -> None:
    assert run(serving_tests, name, TRUNNION_OVERLAP=overlap) == f"ok {name}\n"


@pytest.mark.nightly
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_serving_sanitized(tmp_path: Path, sanitizer: str) -> None:
    build = cmake_build(HOST_PACKAGE / "tests", tmp_path, f"-DTRUNNION_SANITIZE={sanitizer}")
    for overlap in ("0", "1"):
        output = run(build / "serving_tests", timeout=1200, TRUNNION_FUZZ_ROUNDS="30", TRUNNION_OVERLAP=overlap)
        assert output.count("ok ") == len(NAMES)
