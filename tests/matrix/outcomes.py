"""What became of every cell of the matrix in one session: `--outcomes FILE` writes it as JSON.

A simulated device says so through the hook `pytest_matrix_device`, a hardware package that is a simulation itself by
`SIMULATED` and `NOT_VERIFIED` in its `__init__`; without either the hardware is the real thing.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from trunnion import registry

from .cases import Case

VERSION = 1
PASSED, FAILED, UNSUPPORTED, SKIPPED, NOT_RUN = "passed", "failed", "unsupported", "skipped", "not run"

ON_DEVICE: Mapping[str, Any] = {"simulated": False, "description": "ran on the device", "not_verified": []}


class DeviceHook:
    """Declares what a plugin that stands in for a device may say of it."""

    @pytest.hookspec(firstresult=True)
    def pytest_matrix_device(self) -> Mapping[str, Any] | None:
        """`{"simulated": bool, "description": str, "not_verified": [str, ...]}` of the session's device."""


class Outcomes:
    """Collects the outcome of each case, those that were deselected included, and writes them when the session ends."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path = path
        self.config = config
        self.cards: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Before marks and `-k` take cases away."""
        for item in items:
            case = _case_of(item)
            if case is not None:
                card = case.card
                self.cards[card.name] = {"family": case.family, "quick": card.quick, "notes": card.notes}
                self.rows[item.nodeid] = {**_describe(case), "outcome": NOT_RUN, "reason": "", "seconds": 0.0}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Set-up, call and tear-down each report; the worst of them counts."""
        row = self.rows.get(report.nodeid)
        if row is None:
            return
        row["seconds"] = round(row["seconds"] + report.duration, 3)
        if report.failed:
            row.update(outcome=FAILED, reason=_last_line(report))
        elif report.skipped and row["outcome"] != FAILED:
            # A case that is listed as unsupported and fails, as it must.
            listed = getattr(report, "wasxfail", None)
            outcome = SKIPPED if listed is None else UNSUPPORTED
            row.update(outcome=outcome, reason=listed or _skip_reason(report))
        elif report.when == "call" and row["outcome"] == NOT_RUN:
            row["outcome"] = PASSED

    def pytest_sessionfinish(self) -> None:
        """Write the file, whatever the session's end."""
        names = {row["hardware"] for row in self.rows.values()}
        device = self.config.hook.pytest_matrix_device() or next(map(_package_says, names), ON_DEVICE)
        head = {"version": VERSION, "device": device, "cards": self.cards}
        # A line per case, for people who compare two files.
        lines = ",\n".join(json.dumps(row) for row in self.rows.values())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(f'{json.dumps(head)[:-1]},\n"cases": [\n{lines}\n]}}\n')


def _package_says(hardware: str) -> Mapping[str, Any]:
    package = importlib.import_module(type(registry.hardware(hardware)).__module__.partition(".")[0])
    description = getattr(package, "SIMULATED", None)
    if description is None:
        return ON_DEVICE
    return {"simulated": True, "description": description, "not_verified": list(package.NOT_VERIFIED)}


def _case_of(item: pytest.Item) -> Case | None:
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return next((value for value in values if isinstance(value, Case)), None)


def _describe(case: Case) -> dict[str, Any]:
    execution = None if case.execution is None else case.execution.value
    return {
        "hardware": case.hardware,
        "card": case.card.name,
        "dtype": case.dtype,
        "mode": case.mode,
        "execution": execution,
    }


def _skip_reason(report: pytest.TestReport) -> str:
    words = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return words.removeprefix("Skipped: ")


def _last_line(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr).strip().splitlines()[0]
