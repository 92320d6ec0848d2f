"""The code of the page for those who export runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from trunnion_bundle.check import check

PAGE = Path(__file__).resolve().parents[1] / "docs" / "exporting.md"


def test_the_code_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert re.fullmatch(r"\[0\.\d+\]\n", capsys.readouterr().out)
    written = sorted(path.parent for path in tmp_path.glob("*/1/COMMITTED"))
    assert [path.parent.name for path in written] == ["hashed", "ranker", "tanh"]
    for path in written:
        assert not [finding for finding in check(path) if finding.state == "failed"], path
