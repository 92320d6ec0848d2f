"""The figures as plain text: a table for each model and weight width, with what trunnion won and lost."""

from __future__ import annotations

from collections.abc import Iterator

from measures import COLUMNS, COSTS
from results import OURS, Group, Row

NOTES = (
    "decode N: tokens/s of N prompts of 32 tokens at once, all in their answers; prefill: prompt tokens/s to the first",
    "token of the answer; start: seconds from starting the process to a first token, cold (files out of memory, the",
    "engine's own caches empty) and warm; memory: most resident, pages of mapped files included. limit: share, at",
    "batch 1, of the rate at which the weights can be read. tokens: greedy ones until one is not that of transformers.",
    "±: half of the range of the rounds. won and lost: the median of the rounds' ratios to the best other engine.",
)


def table(group: Group) -> str:
    """Medians, our verdict under each column, and why figures are missing."""
    head = ["", *COLUMNS, "limit", "tokens"]
    lines = [head, *(_cells(group, row) for row in group.rows)]
    lines.append([OURS, *(group.verdict(column) for column in COLUMNS), "", ""])
    rate = group.read_rate / 1e9
    title = f"{group.model}, {group.bits} bits (memory is read at {rate:.1f} GB/s)"
    return "\n".join([title, *_aligned(lines), *_missing(group)])


def figure(column: str, value: float) -> str:
    """A value as its column shows it."""
    if column == "memory":
        return f"{value / 1e9:.2f} GB"
    if column in COSTS:
        return f"{value:.1f} s"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def agreement(row: Row) -> str:
    return "" if row.agreement is None else f"{row.agreement[0]}/{row.agreement[1]}"


def _cells(group: Group, row: Row) -> list[str]:
    cells = (_cell(row, column) for column in COLUMNS)
    return [row.engine, *cells, share(group.share_of_limit(row)), agreement(row)]


def _cell(row: Row, column: str) -> str:
    value = row.median(column)
    if value is None:
        return "-"
    spread = f" ±{row.spread(column) / 2:.0%}" if len(row.samples[column]) > 1 else ""
    return figure(column, value) + spread


def _aligned(lines: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        first, *others = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield "  ".join([line[0].ljust(len(first)), *others]).rstrip()


def _missing(group: Group) -> Iterator[str]:
    for row in group.rows:
        for column, reason in row.failures.items():
            yield f"  {row.engine}{f', {column}' if column else ''}: {reason}"
        if row.idle_share > 0.1:
            yield f"  {row.engine}: used {row.idle_share:.0%} of a core while others were measured"
