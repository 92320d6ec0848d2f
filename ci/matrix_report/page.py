"""Writes `matrix.json` and `matrix.html`, one file that holds the same data and needs nothing from anywhere."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from matrix_report.cells import Matrix

ROOT = Path(__file__).resolve().parent.parent.parent
TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "{{MATRIX}}"


def write_page(matrix: Matrix, folder: Path) -> Path:
    """The path of `matrix.html` in `folder`, which is made; `matrix.json` lies beside it."""
    content = {"written": datetime.now(UTC).isoformat(timespec="seconds"), "commit": _commit(), **matrix.describe()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "matrix.json").write_text(json.dumps(content, indent=1) + "\n")
    page = folder / "matrix.html"
    page.write_text(TEMPLATE.read_text().replace(PLACE, _embedded(content)))
    return page


def _embedded(content: dict[str, Any]) -> str:
    """JSON that cannot end the element it lies in."""
    return json.dumps(content).replace("<", "\\u003c")


def _commit() -> str:
    """The commit that was tested, and whether the tree had changes."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
