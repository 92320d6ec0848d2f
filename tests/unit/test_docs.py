"""The manuals name calls as the code has them."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from trunnion.interfaces.attention import Group
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.runner import Runner

DOCS = Path(__file__).resolve().parents[2] / "packages" / "trunnion" / "docs"
OWNERS = (Hardware, Group, Runner)
CALLS = [
    (page.name, name, [word.strip() for word in arguments.split(",")])
    for page in sorted(DOCS.glob("*.md"))
    for name, arguments in re.findall(r"`(\w+)\(([\w, ]+)\)`", page.read_text())
    if any(hasattr(owner, name) for owner in OWNERS)
]


@pytest.mark.parametrize(("page", "name", "arguments"), CALLS, ids=[f"{page}-{name}" for page, name, _ in CALLS])
def test_calls_take_what_the_manual_says(page: str, name: str, arguments: list[str]) -> None:
    functions = [getattr(owner, name) for owner in OWNERS if hasattr(owner, name)]
    accepted = [[word for word in inspect.signature(function).parameters if word != "self"] for function in functions]
    assert arguments in accepted, f"{page}: {name} takes {accepted}"


def test_manuals_name_the_interfaces() -> None:
    named = {name for _, name, _ in CALLS}
    assert {"group_class", "create_runner", "collectives", "plan", "select", "warm_up", "run"} <= named
