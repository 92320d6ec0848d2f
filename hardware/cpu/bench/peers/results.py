"""What a run found, as it is written to JSON, and what follows from it: medians, who won, shares of the limit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from measures import COSTS

OURS = "trunnion"


@dataclass(kw_only=True)
class Row:
    """One engine on one model in one weight width."""

    engine: str
    version: str = ""
    file: str = ""
    """What it read: the kind of checkpoint."""
    weight_bytes: int = 0
    """Of that file: what a decode step reads."""
    samples: dict[str, list[float]] = field(default_factory=dict)
    """Column -> one figure a round."""
    failures: dict[str, str] = field(default_factory=dict)
    """Column -> why there is none; "" is all of them."""
    idle_share: float = 0.0
    """Processor time of one core that it used while a neighbour was measured, at most."""
    agreement: tuple[int, int] | None = None
    """Greedy tokens equal to transformers' before the first other one, of how many."""

    def median(self, column: str) -> float | None:
        found = self.samples.get(column)
        return statistics.median(found) if found else None

    def spread(self, column: str) -> float:
        """The range of the samples over their median."""
        found = self.samples[column]
        middle = statistics.median(found)
        return (max(found) - min(found)) / middle if middle else 0.0

    def reason(self, column: str) -> str:
        return self.failures.get(column) or self.failures.get("", "")


@dataclass(kw_only=True)
class Group:
    """Engines that took turns: one model in one weight width."""

    model: str
    bits: int
    bandwidth: list[float]
    """Bytes per second that the threads read, one measurement a round."""
    rows: list[Row]

    @property
    def read_rate(self) -> float:
        return statistics.median(self.bandwidth)

    def limit(self, row: Row) -> float:
        """Tokens per second of one sequence if reading the weights were all."""
        return self.read_rate / row.weight_bytes

    def share_of_limit(self, row: Row) -> float | None:
        rate = row.median("decode 1")
        return rate / self.limit(row) if rate and row.weight_bytes else None

    def verdict(self, column: str) -> str:
        """`won`, `lost` or why neither, from our row against the best other."""
        ours = next((row for row in self.rows if row.engine == OURS and row.samples.get(column)), None)
        others = [row for row in self.rows if row.engine != OURS and row.samples.get(column)]
        if ours is None or not others:
            return "not measured" if ours is None else "no rival"
        ratios = {row.engine: times_better(ours, row, column) for row in others}
        rival = min(ratios, key=lambda name: ratios[name])
        return f"{'won' if ratios[rival] >= 1 else 'lost'}, {ratios[rival]:.2f} x {rival}"


def times_better(ours: Row, other: Row, column: str) -> float:
    """How much better ours is, above 1, or worse: the median of the ratios of each round."""
    pairs = list(zip(ours.samples[column], other.samples[column], strict=False))
    ratio = statistics.median(one / rival for one, rival in pairs)
    return 1 / ratio if column in COSTS else ratio


def group_from(found: Mapping[str, Any]) -> Group:
    """A group of a JSON file."""
    rows = [Row(**{**row, "agreement": tuple(row["agreement"]) if row["agreement"] else None}) for row in found["rows"]]
    return Group(**{**found, "rows": rows})


def groups_from(found: Mapping[str, Any]) -> Sequence[Group]:
    return [group_from(group) for group in found["groups"]]
