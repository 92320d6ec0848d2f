"""Runs the tests of interpreted/ in a process of their own: numerics of the Triton kernels without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import pytest

FOLDER = Path(__file__).resolve().parent / "interpreted"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))
TIMEOUT_SECONDS = 840


@dataclass
class Outcome:
    """Of the tests of one file."""

    num_passed: int = 0
    failures: list[str] = field(default_factory=list)


def run(files: list[str], marks: str, report: Path) -> Mapping[str, Outcome]:
    """What became of the tests in each of `files`; one process starts once for all."""
    paths = (str(FOLDER / file) for file in files)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *paths, "-m", marks)
    environment = dict(os.environ, TRITON_INTERPRET="1")
    result = subprocess.run(
        (*command, f"--junitxml={report}"), env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS
    )
    assert result.returncode in (0, 1), result.stdout[-6000:] + result.stderr[-2000:]
    found = {file: Outcome() for file in files}
    for case in ElementTree.parse(report).iter("testcase"):
        outcome = found[f"{case.attrib['classname'].rpartition('.')[2]}.py"]
        failed = [part for part in case if part.tag in ("failure", "error")]
        outcome.failures += [f"{case.attrib['name']}: {part.text}" for part in failed]
        outcome.num_passed += len(case) == 0
    return found


def check(outcome: Outcome) -> None:
    assert not outcome.failures, "\n".join(outcome.failures)[-6000:]
    assert outcome.num_passed, "nothing ran"


@pytest.fixture(scope="module")
def quick(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Outcome]:
    """Of the files that this session is to run."""
    chosen = [item.callspec for item in request.session.items if "quick" in getattr(item, "fixturenames", ())]
    files = [call.params["file"] for call in chosen]
    return run(files, "not nightly", tmp_path_factory.mktemp("interpreted") / "report.xml")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", FILES)
def test_kernels_equal_the_reference(file: str, quick: Mapping[str, Outcome]) -> None:
    check(quick[file])


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", [file for file in FILES if "nightly" in (FOLDER / file).read_text()])
def test_kernels_equal_the_reference_at_more_shapes(file: str, tmp_path: Path) -> None:
    check(run([file], "nightly", tmp_path / "report.xml")[file])
