"""`ci/npu_check.py` itself: over the simulated device, and where there is no NPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[3] / "ci" / "npu_check.py"
TIMEOUT_SECONDS = 280


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """With no path but its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        (sys.executable, str(SCRIPT), *arguments),
        capture_output=True,
        text=True,
        env=environment,
        timeout=TIMEOUT_SECONDS,
    )


def test_it_runs_over_the_simulated_device(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    result = run("--simulated", "--card", "llama-quick", "--dtype", "bfloat16", "--json", str(file))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    rows = {(row["part"], row["what"]): row for row in json.loads(file.read_text())["rows"]}
    assert rows["pins", "torch_npu"]["result"] == "passed"
    assert "0 eager" in rows["matrix", "llama-quick bfloat16 full"]["detail"]
    assert "0 replayed" in rows["matrix", "llama-quick bfloat16 eager"]["detail"]
    (decode,) = (row for (part, _), row in rows.items() if part == "decode")
    assert decode["result"] == "passed" and "ratio" in decode["detail"]
    assert all(row["result"] != "FAILED" for row in rows.values())


def test_without_an_npu_it_says_so() -> None:
    result = run()
    assert result.returncode == 2
    assert result.stdout.startswith("no NPU that torch") and len(result.stdout.splitlines()) == 1
