"""`ci/gpu_check.py` itself: over the simulated device, without FlashInfer, and where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "ci" / "gpu_check.py"
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


def rows_of(path: Path) -> dict[tuple[str, str], dict[str, str]]:
    return {(row["part"], row["what"]): row for row in json.loads(path.read_text())["rows"]}


def test_without_a_gpu_it_says_so() -> None:
    import torch

    if torch.version.cuda:
        pytest.skip("there may be a GPU")
    result = run()
    assert result.returncode == 2
    assert result.stdout.startswith("no GPU that torch") and len(result.stdout.splitlines()) == 1


def test_it_runs_over_the_simulated_device(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    options = ("--simulated", "--card", "llama-quick", "--dtype", "bfloat16", "--json", str(file))
    result = run(*options, "--without-flashinfer")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    rows = rows_of(file)
    assert rows["pins", "triton"]["result"] == "passed"
    assert "not used (--without-flashinfer)" in rows["packages", "flashinfer"]["detail"]
    assert "0 eager" in rows["matrix", "llama-quick bfloat16 full"]["detail"]
    assert "FlashInfer missing: flashinfer-python is not" in rows["matrix", "llama-quick bfloat16 full"]["detail"]
    assert "0 replayed" in rows["matrix", "llama-quick bfloat16 eager"]["detail"]
    (decode,) = (row for (part, _), row in rows.items() if part == "decode")
    assert decode["result"] == "passed" and "ratio" in decode["detail"]
    assert all(row["result"] != "FAILED" for row in rows.values())


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    result = run("--simulated", "--seconds", "0", "--json", str(file))
    assert result.returncode == 0, result.stderr[-3000:]
    skipped = [row for row in rows_of(file).values() if row["result"] == "skipped"]
    assert len(skipped) > 5 and {row["detail"] for row in skipped} == {"the time is used up"}
