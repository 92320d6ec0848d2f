"""Commands of other distributions: found by entry point, imported when they are run, given their words unread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]

COMMAND = """
import sys

def main(arguments):
    print(arguments)
    return len(arguments)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with one module, `toy_command`, that is forgotten afterwards."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "toy_command.py").write_text(COMMAND)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "toy_command", raising=False)
    return folder


def install(site: Path, distribution: str, value: str) -> None:
    info = site / f"{distribution}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[trunnion.commands]\ntoy = {value}\n")


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["run", "--json", "-x", "--", "a"], ["--model", "m"]], ids=lambda words: "-".join(words)
)
def test_gets_its_words_as_they_are(cli: Cli, site: Path, words: list[str]) -> None:
    install(site, "toys", "toy_command:main")
    outcome = cli("toy", *words)
    assert outcome.out == f"{words}\n"
    assert outcome.code == len(words)


def test_is_listed_without_being_imported(cli: Cli, site: Path) -> None:
    install(site, "toys", "toy_command:main")
    assert "from the distribution toys" in cli("--help").out.replace("\n", " ")
    assert "toy_command" not in sys.modules


def test_two_of_one_name_are_named(cli: Cli, site: Path) -> None:
    install(site, "toys", "toy_command:main")
    install(site, "others", "toy_command:other")
    outcome = cli("toy")
    assert outcome.code == 2
    assert "toy_command:main" in outcome.err and "toy_command:other" in outcome.err
