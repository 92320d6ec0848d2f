"""Puts the outcomes of many test sessions together: one cell per card, hardware and way of execution."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VERSION = 1
"""Of the files that the tests write."""
GREEN, RED, UNSUPPORTED, NOT_VERIFIED = "green", "red", "unsupported", "not verified"
STATUSES = (GREEN, RED, UNSUPPORTED, NOT_VERIFIED)
HOST = "host"
"""The column of cases that the C++ host served."""
PLAIN = "eager"
"""The column of hardware that has one way to execute."""
COLUMNS = ("eager", "piecewise", "full", HOST)
PASSED, FAILED, LISTED, NOT_RUN = "passed", "failed", "unsupported", "not run"
"""Outcomes of a case, as the tests write them."""


class ReportError(Exception):
    """A file is not what the matrix's tests write."""


@dataclass
class Cell:
    """The cases of one card on one hardware, executed one way."""

    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, str] = field(default_factory=dict)
    """Case (dtype and mode) -> why it failed, or cannot run."""
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """Red if a case failed; green only if every case ran, but for those that the mode itself rules out."""
        if self.counts[FAILED]:
            return RED
        if self.counts[LISTED]:
            return UNSUPPORTED
        return NOT_VERIFIED if self.counts[NOT_RUN] or not self.counts[PASSED] else GREEN

    def add(self, case: Mapping[str, Any]) -> None:
        self.counts[case["outcome"]] += 1
        self.seconds += case["seconds"]
        if case["reason"]:
            self.reasons[f"{case['dtype']} {case['mode']}"] = case["reason"]

    def describe(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "counts": dict(sorted(self.counts.items())),
            "reasons": self.reasons,
            "seconds": round(self.seconds, 1),
        }


@dataclass
class Matrix:
    """All cells of the sessions read."""

    devices: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Hardware -> whether it was simulated, its own words, and what it leaves open."""
    cards: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """Card -> family, whether it runs with every change, what it is there to catch."""
    cells: dict[tuple[str, str, str], Cell] = field(default_factory=dict)
    """(card, hardware, column) -> its cases."""

    def columns(self, hardware: str) -> list[str]:
        """The ways in which `hardware` executes, in the order of COLUMNS."""
        found = {column for _, name, column in self.cells if name == hardware}
        return [column for column in COLUMNS if column in found]

    def count(self, hardware: str, family: str | None = None) -> Counter[str]:
        """Cells by status, of one family or of all."""
        return Counter(
            cell.status
            for (card, name, _), cell in self.cells.items()
            if name == hardware and family in (None, self.cards[card]["family"])
        )

    def families(self) -> list[str]:
        return sorted({card["family"] for card in self.cards.values()})

    def describe(self) -> dict[str, Any]:
        """`matrix.json`, but for when and of what it was written."""
        cards = []
        for name, card in sorted(self.cards.items(), key=lambda entry: (entry[1]["family"], not entry[1]["quick"])):
            cells: dict[str, dict[str, Any]] = {}
            for hardware in self.devices:
                found = {column: self.cells.get((name, hardware, column)) for column in self.columns(hardware)}
                cells[hardware] = {column: cell.describe() for column, cell in found.items() if cell is not None}
            cards.append({"name": name, **card, "cells": cells})
        hardware = [{"name": name, **device, "columns": self.columns(name)} for name, device in self.devices.items()]
        return {"version": VERSION, "statuses": list(STATUSES), "hardware": hardware, "cards": cards}


def read_outcomes(paths: Iterable[Path]) -> Matrix:
    """One matrix of all files; of a case that several tell of, the last file's word counts unless it did not run there.

    Raises:
        ReportError: a file is none of ours, or of another version.
    """
    matrix = Matrix()
    latest: dict[tuple[str, ...], Mapping[str, Any]] = {}
    for path in paths:
        try:
            content = json.loads(path.read_text())
            version = content["version"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReportError(f"{path}: not written by the matrix's tests: {error!r}") from None
        if version != VERSION:
            raise ReportError(f"{path}: version {version} is not known; expected {VERSION}")
        matrix.cards.update(content["cards"])
        for case in content["cases"]:
            matrix.devices[case["hardware"]] = content["device"]
            key = (case["card"], case["hardware"], case["execution"] or "", case["dtype"], case["mode"])
            if key not in latest or case["outcome"] != NOT_RUN:
                latest[key] = case
    for case in latest.values():
        column = HOST if case["mode"] == "served" else case["execution"] or PLAIN
        matrix.cells.setdefault((case["card"], case["hardware"], column), Cell()).add(case)
    return matrix
