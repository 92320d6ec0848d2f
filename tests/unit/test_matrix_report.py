"""The page of the matrix: what a cell says, what several sessions say together, and what a browser shows of it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from matrix_report.__main__ import main
from matrix_report.cells import GREEN, NOT_VERIFIED, RED, UNSUPPORTED, ReportError, read_outcomes
from matrix_report.summary import BEGIN, END

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
REASON = "float8 is not cast there </script><b>"


def case(hardware: str, card: str, outcome: str, **changes: Any) -> dict[str, Any]:
    row = {"hardware": hardware, "card": card, "dtype": "float32", "mode": "whole", "execution": None}
    return {**row, "outcome": outcome, "reason": "", "seconds": 0.5, **changes}


def write(path: Path, *cases: dict[str, Any], simulated: bool = False, version: int = 1) -> Path:
    device = {"simulated": simulated, "description": "words of the device", "not_verified": ["speed"] * simulated}
    names = {row["card"] for row in cases}
    cards = {name: {"family": name.split("-")[0], "quick": name.endswith("quick"), "notes": "odd"} for name in names}
    path.write_text(json.dumps({"version": version, "device": device, "cards": cards, "cases": cases}))
    return path


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two sessions: on the CPU one card failed, on a simulated device one runs in full only and one cannot run."""
    cpu = write(
        tmp_path / "cpu.json",
        case("cpu", "llama-quick", "passed"),
        case("cpu", "llama-quick", "passed", mode="served"),
        case("cpu", "qwen-quick", "failed", reason="off by 1e-2"),
        case("cpu", "qwen-wide", "not run"),
    )
    device = write(
        tmp_path / "device.json",
        case("npu", "llama-quick", "passed", execution="full"),
        case("npu", "llama-quick", "not run", execution="eager"),
        case("npu", "qwen-quick", "unsupported", execution="full", dtype="bfloat16", reason=REASON),
        case("npu", "qwen-quick", "passed", execution="full"),
        simulated=True,
    )
    return [cpu, device]


def test_a_cell_is_green_only_if_all_its_cases_ran(files: list[Path]) -> None:
    matrix = read_outcomes(files)
    status = {key: cell.status for key, cell in matrix.cells.items()}
    assert status == {
        ("llama-quick", "cpu", "eager"): GREEN,
        ("llama-quick", "cpu", "host"): GREEN,
        ("qwen-quick", "cpu", "eager"): RED,
        ("qwen-wide", "cpu", "eager"): NOT_VERIFIED,
        ("llama-quick", "npu", "full"): GREEN,
        ("llama-quick", "npu", "eager"): NOT_VERIFIED,
        ("qwen-quick", "npu", "full"): UNSUPPORTED,
    }
    assert matrix.columns("npu") == ["eager", "full"]


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (["passed", "not run"], NOT_VERIFIED),
        (["passed", "skipped"], GREEN),
        (["skipped"], NOT_VERIFIED),
        (["unsupported", "failed"], RED),
    ],
)
def test_what_a_few_cases_make_of_a_cell(tmp_path: Path, outcomes: list[str], expected: str) -> None:
    rows = [case("cpu", "llama-quick", outcome, mode=f"mode{index}") for index, outcome in enumerate(outcomes)]
    (cell,) = read_outcomes([write(tmp_path / "one.json", *rows)]).cells.values()
    assert cell.status == expected


def test_a_case_that_did_not_run_again_keeps_its_outcome(tmp_path: Path) -> None:
    first = write(tmp_path / "1.json", case("cpu", "llama-quick", "failed", reason="then"))
    second = write(tmp_path / "2.json", case("cpu", "llama-quick", "not run"))
    third = write(tmp_path / "3.json", case("cpu", "llama-quick", "passed"))
    key = ("llama-quick", "cpu", "eager")
    assert read_outcomes([first, second]).cells[key].status == RED
    assert read_outcomes([first, third]).cells[key].status == GREEN


def test_a_file_of_another_kind_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    with pytest.raises(ReportError, match=r"other\.json: not written by the matrix"):
        read_outcomes([other])
    with pytest.raises(ReportError, match="version 7 is not known; expected 1"):
        read_outcomes([write(tmp_path / "new.json", version=7)])
    assert main([str(other), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.startswith("error: ")


def test_the_json_holds_every_cell_and_reason(files: list[Path], tmp_path: Path) -> None:
    assert main([*map(str, files), "--out", str(tmp_path / "out")]) == 0
    content = json.loads((tmp_path / "out" / "matrix.json").read_text())
    assert [(h["name"], h["simulated"], h["columns"]) for h in content["hardware"]] == [
        ("cpu", False, ["eager", "host"]),
        ("npu", True, ["eager", "full"]),
    ]
    cells = {card["name"]: card["cells"] for card in content["cards"]}
    assert cells["qwen-quick"]["npu"]["full"]["reasons"] == {"bfloat16 whole": REASON}
    assert cells["qwen-quick"]["cpu"]["eager"]["status"] == RED


def test_the_summary_replaces_what_lies_between_its_marks(files: list[Path], tmp_path: Path) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main([*map(str, files), "--out", str(tmp_path / "out"), "--summary", str(readme)]) == 0
    lines = readme.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| family | cards | cpu | npu (simulated) |" in lines
    assert "| llama | 1 | 2 green | 1 green, 1 not verified |" in lines
    assert "| qwen | 2 | 1 red, 1 not verified | 1 unsupported |" in lines
    assert "old" not in lines


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: the page was not opened")
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("", ["llama-quick", "qwen-quick", "qwen-wide"]),
        ("#find=qwen", ["qwen-quick", "qwen-wide"]),
        ("#find=qwen&quick=1", ["qwen-quick"]),
        ("#show=unsupported", ["qwen-quick"]),
    ],
)
def test_a_browser_shows_the_cells(files: list[Path], tmp_path: Path, address: str, shown: list[str]) -> None:
    assert main([*map(str, files), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "matrix.html").as_uri() + address
    found = _open(page, tmp_path)
    assert re.findall(r'data-card="([^"]+)"', found) == shown
    assert 'aria-label="qwen-quick, npu, full: unsupported"' in found or "qwen-quick" not in shown
    assert "npu: words of the device" in found
    assert "not verified: speed" in found
    assert re.search(r'data-hardware="cpu"><th>cpu</th><td class="green">2</td><td class="red">1</td>', found)


def _open(address: str, folder: Path) -> str:
    """The document after its scripts, as a headless browser has it."""
    switches = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
    command = [str(BROWSER), *switches, f"--user-data-dir={folder / 'profile'}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
