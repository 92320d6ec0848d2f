"""`--outcomes FILE` tells of every cell, whether it ran or not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.matrix.cases import cases
from tests.matrix.outcomes import FAILED, NOT_RUN, PASSED, SKIPPED, UNSUPPORTED, Outcomes

ROOT = Path(__file__).resolve().parents[2]


def test_a_session_writes_every_cell(tmp_path: Path) -> None:
    """In a process of its own, on the embedded default."""
    path = tmp_path / "new" / "outcomes.json"
    command = [sys.executable, "-m", "pytest", "-q", "tests/matrix", "-k", "llama-quick-cpu-fp32-whole"]
    done = subprocess.run([*command, f"--outcomes={path}"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    content = json.loads(path.read_text())
    assert len(content["cases"]) == len(cases("cpu"))
    assert Counter(case["outcome"] for case in content["cases"]) == {PASSED: 1, NOT_RUN: len(cases("cpu")) - 1}
    assert content["cards"]["llama-quick"]["family"] == "llama"
    assert content["device"]["simulated"] is False


def report(when: str, **changes: Any) -> Any:
    fields = {"nodeid": "x", "duration": 0.25, "when": when, "failed": False, "skipped": False, "longrepr": None}
    return SimpleNamespace(**{**fields, **changes})


@pytest.mark.parametrize(
    ("reports", "outcome", "reason"),
    [
        ([report("setup"), report("call"), report("teardown")], PASSED, ""),
        ([report("setup", failed=True, longrepr="no memory\nmore"), report("teardown")], FAILED, "no memory"),
        ([report("setup"), report("call"), report("teardown", failed=True, longrepr="leak")], FAILED, "leak"),
        (
            [report("setup"), report("call", skipped=True, longrepr=("f", 1, "Skipped: no blocks"))],
            SKIPPED,
            "no blocks",
        ),
        ([report("setup"), report("call", skipped=True, wasxfail="no float8")], UNSUPPORTED, "no float8"),
    ],
)
def test_the_worst_of_set_up_call_and_tear_down_counts(reports: list[Any], outcome: str, reason: str) -> None:
    found = Outcomes(Path("unused"), SimpleNamespace())  # type: ignore[arg-type]
    found.rows["x"] = {"outcome": NOT_RUN, "reason": "", "seconds": 0.0}
    for one in reports:
        found.pytest_runtest_logreport(one)
    assert found.rows["x"] == {"outcome": outcome, "reason": reason, "seconds": 0.25 * len(reports)}
