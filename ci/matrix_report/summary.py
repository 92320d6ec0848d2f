"""The matrix in a few lines of Markdown, between two marks of a file that people write."""

from __future__ import annotations

from pathlib import Path

from matrix_report.cells import STATUSES, Matrix, ReportError

BEGIN, END = "<!-- matrix: begin, written by `nox -s matrix` -->", "<!-- matrix: end -->"


def write_summary(matrix: Matrix, path: Path) -> None:
    """Replace what lies between the marks of `path`.

    Raises:
        ReportError: the file has no marks.
    """
    text = path.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ReportError(f"{path}: the marks {BEGIN!r} and {END!r} are not there")
    path.write_text(f"{before}{BEGIN}\n{summarise(matrix)}{END}{after}")


def summarise(matrix: Matrix) -> str:
    """A row per family, a column per hardware: how many cells (a card executed one way) are what."""
    names = [f"{name} (simulated)" if device["simulated"] else name for name, device in matrix.devices.items()]
    lines = [f"| family | cards | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    for family in matrix.families():
        cards = sum(card["family"] == family for card in matrix.cards.values())
        counts = [matrix.count(hardware, family) for hardware in matrix.devices]
        cells = [", ".join(f"{count[s]} {s}" for s in STATUSES if count[s]) or "none" for count in counts]
        lines.append(f"| {family} | {cards} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
