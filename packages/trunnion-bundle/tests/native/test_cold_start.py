"""What a load takes in the server, part by part and size by size, in its own words and in those of `show`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from serving import write_echo

from trunnion_bundle.cli import main


def test_the_parts_of_a_load(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = write_echo(tmp_path / "echo", base_us=20_000, row_us=1000, allowed_sizes=(1, 16))
    monkeypatch.setattr("trunnion_bundle.programs.BIN", programs)
    assert main(["show", str(bundle), "--json", "--cold-start"]) == 0
    found = json.loads(capsys.readouterr().out)["cold_start_served"]
    assert (found["model"], found["platform"], found["compiled_here"]) == ("echo", "sim", False)
    one, sixteen = (found["batch_microseconds"]["sum"][size] for size in ("1", "16"))
    assert 21_000 <= one < 36_000 <= sixteen < 200_000
    # Four runs of each size.
    assert 4 * (0.021 + 0.036) <= found["warm_seconds"] < 3
    assert 0 < found["verify_seconds"] < 5 and 0 <= found["open_seconds"] < 5
    assert main(["show", str(bundle), "--cold-start"]) == 0
    assert "cold start of the server: " in capsys.readouterr().out


def test_a_load_that_fails_is_no_figure(programs: Path, tmp_path: Path) -> None:
    bundle = write_echo(tmp_path / "echo")
    (bundle / "extra").write_text("")
    command = [str(programs / "trunnion-serve-bundle"), str(bundle), "--load-only"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, json.loads(done.stdout)) == (1, [])
    assert "extra is not listed" in done.stderr
