"""The rows of a first-day script: each is printed when it is known, and all of them at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

PASSED, FAILED, SKIPPED, NOTED = "passed", "FAILED", "skipped", "noted"


@dataclass
class Table:
    """The rows found so far; each is printed when it is known."""

    ends: float
    rows: list[dict[str, str]] = field(default_factory=list)

    def add(self, part: str, what: str, result: str, detail: str = "") -> None:
        self.rows.append({"part": part, "what": what, "result": result, "detail": detail})
        print(f"{part}: {what}: {result}{detail and f', {detail}'}", flush=True)

    def attempt(self, part: str, what: str, work: Callable[[list[str]], None]) -> None:
        """A row for what `work` does; the lines it adds to the list become the detail. Without time it is skipped."""
        if time.monotonic() >= self.ends:
            self.add(part, what, SKIPPED, "the time is used up")
            return
        lines: list[str] = []
        try:
            work(lines)
        except Exception as error:  # the other parts are worth knowing all the same
            self.add(part, what, FAILED, f"{type(error).__name__}: {error}".splitlines()[0][:300])
        else:
            self.add(part, what, PASSED, ", ".join(lines))

    def text(self) -> str:
        columns = ("part", "what", "result", "detail")
        widths = [max(len(row[name]) for row in self.rows) for name in columns]
        return "\n".join(
            "  ".join(row[name].ljust(width) for name, width in zip(columns, widths, strict=True)).rstrip()
            for row in self.rows
        )
