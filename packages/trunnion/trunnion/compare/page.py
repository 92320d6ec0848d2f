"""A comparison as one page for a browser: the error of each module over the depth, and the table behind it."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Sequence

from trunnion.compare.comparison import Comparison, Row

WIDTH, HEIGHT = 960, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 44
LEAST, MOST = -9, 1
"""Powers of ten that the plot spans; what is less lies on its lower edge, and what is no number on its upper."""
LABELS = 16
"""Layers whose numbers stand below the plot, at most about so many."""
STYLE = """
body{font:14px system-ui,sans-serif;max-width:980px;margin:24px auto;padding:0 12px;color:#222}
h1{font-size:20px} p{margin:6px 0} #verdict{font-weight:bold} #verdict.differs{color:#b00} #verdict.same{color:#070}
svg{width:100%;height:auto;border:1px solid #ddd} svg text{font-size:11px;fill:#666} .grid{stroke:#eee}
.allowed{stroke:#b00;stroke-dasharray:6 4} svg text.allowed{stroke:none;fill:#b00} .depth{fill:none;stroke:#36c}
circle{fill:#9ab} circle.layer{fill:#36c} circle.first{fill:#b00} circle:hover{stroke:#000;stroke-width:2}
table{border-collapse:collapse;margin-top:16px}
td,th{padding:2px 12px;text-align:right;font-variant-numeric:tabular-nums}
td:first-child,th:first-child{text-align:left;font-family:monospace} thead th{position:sticky;top:0;background:#fff}
tr.over td:nth-child(3){color:#b00} tr.first{background:#fdd} tr:target{outline:2px solid #36c}
"""


def page(result: Comparison, model: str, title: str) -> str:
    """HTML that needs nothing from anywhere.

    Each module is a dot, at its place in the order in which modules ended; a line joins the layers' own outputs. A dot
    leads to its row of the table.
    """
    state = "same" if result.first_different is None else "differs"
    rows = "\n".join(_row(index, row, result) for index, row in enumerate(result.rows))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(model)}</title><style>{STYLE}</style></head><body>
<h1>{html.escape(model)}</h1>
<p>{html.escape(title)}</p>
<p id="verdict" class="{state}">{html.escape(result.verdict)}</p>
{_plot(result)}
<p>Root mean square of the difference, relative to the other side's output, by depth. Blue: outputs of layers; grey: of
what is in and around them; red: the first module that was given the same and made something else.</p>
<table><thead><tr><th>module</th><th>largest</th><th>relative</th><th>cosine</th><th>given</th></tr></thead><tbody>
{rows}
</tbody></table></body></html>
"""


def _row(index: int, row: Row, result: Comparison) -> str:
    marks = (["first"] if row is result.first_different else []) + (
        [] if row.relative <= result.tolerance else ["over"]
    )
    return (
        f'<tr id="row-{index}" class="{" ".join(marks)}"><td>{html.escape(row.module)}</td><td>{row.largest:.2e}</td>'
        f"<td>{row.relative:.2e}</td><td>{row.cosine:.6f}</td><td>{row.given:.2e}</td></tr>"
    )


def _plot(result: Comparison) -> str:
    rows = result.rows
    layers = [index for index, row in enumerate(rows) if re.fullmatch(r"layers\.\d+", row.module)]
    line = " ".join(f"{_across(index, rows):.1f},{_down(rows[index].relative):.1f}" for index in layers)
    parts = [
        *_grid(rows, layers),
        _mark(result.tolerance, "allowed", f"allowed {result.tolerance:.0e}"),
        f'<polyline class="depth" points="{line}"/>',
        *(_dot(index, row, result, is_layer=index in layers) for index, row in enumerate(rows)),
    ]
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="relative error by depth">\n{body}\n</svg>'


def _grid(rows: Sequence[Row], layers: Sequence[int]) -> Iterator[str]:
    for power in range(LEAST, MOST + 1, 2):
        yield _mark(10.0**power, "grid", "", f"1e{power}")
    step = max(1, -(-len(layers) // LABELS))
    for index in layers[::step]:
        across, number = _across(index, rows), rows[index].module.removeprefix("layers.")
        yield f'<line class="grid" x1="{across:.1f}" x2="{across:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<text x="{across:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number}</text>'
    yield f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 8}" text-anchor="middle">end of layer</text>'


def _mark(value: float, kind: str, inside: str, label: str = "") -> str:
    """A horizontal line, with a text above it and one beside it."""
    down = _down(value)
    return (
        f'<line class="{kind}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{down:.1f}" y2="{down:.1f}"/>'
        f'<text class="{kind}" x="{LEFT + 6}" y="{down - 5:.1f}">{inside}</text>'
        f'<text x="{LEFT - 6}" y="{down + 4:.1f}" text-anchor="end">{label}</text>'
    )


def _dot(index: int, row: Row, result: Comparison, *, is_layer: bool) -> str:
    kind = "first" if row is result.first_different else "layer" if is_layer else "part"
    radius = {"first": 6, "layer": 4, "part": 3}[kind]
    return (
        f'<a href="#row-{index}"><circle class="{kind}" cx="{_across(index, result.rows):.1f}" '
        f'cy="{_down(row.relative):.1f}" r="{radius}"><title>{html.escape(row.module)}: {row.relative:.1e}</title>'
        "</circle></a>"
    )


def _across(index: int, rows: Sequence[Row]) -> float:
    return LEFT + 8 + index * (WIDTH - LEFT - RIGHT - 16) / max(len(rows) - 1, 1)


def _down(relative: float) -> float:
    if math.isnan(relative):
        power: float = MOST
    else:
        power = LEAST if relative <= 0 else min(max(math.log10(relative), LEAST), MOST)
    return HEIGHT - BOTTOM - (power - LEAST) / (MOST - LEAST) * (HEIGHT - TOP - BOTTOM)
