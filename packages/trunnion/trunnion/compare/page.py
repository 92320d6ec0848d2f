"""A comparison as one page for a browser: the error of each module over the depth, and the table behind it."""

from __future__ import annotations

import html
import math

from trunnion.compare.comparison import Comparison, Row

WIDTH, HEIGHT, MARGIN = 960, 260, 40
LEAST, MOST = -9.0, 1.0
"""Powers of ten that the plot spans."""
STYLE = (
    "body{font:14px sans-serif;max-width:980px;margin:24px auto}table{border-collapse:collapse}"
    "td,th{padding:2px 10px;text-align:right}td:first-child,th:first-child{text-align:left}"
    "tr.first{background:#fdd}svg{background:#fafafa}"
)


def page(result: Comparison, title: str) -> str:
    """HTML that needs nothing from anywhere."""
    first = result.first_different
    verdict = "no difference" if first is None else f"first difference: {first.module}"
    rows = "".join(_row(row, is_first=row is first) for row in result.rows)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
        f"<h1>{html.escape(title)}</h1><p id=verdict>{html.escape(verdict)}; allowed {result.tolerance:.0e}</p>"
        f"{_plot(result)}<table><tr><th>module<th>largest<th>relative<th>cosine<th>given</tr>{rows}</table></html>\n"
    )


def _row(row: Row, *, is_first: bool) -> str:
    mark = " class=first" if is_first else ""
    return (
        f"<tr{mark}><td>{html.escape(row.module)}<td>{row.largest:.2e}<td>{row.relative:.2e}<td>{row.cosine:.6f}"
        f"<td>{row.given:.2e}</tr>"
    )


def _plot(result: Comparison) -> str:
    """Relative errors on a logarithmic axis, in the order in which modules ended, and the line of what is allowed."""
    step = (WIDTH - 2 * MARGIN) / max(len(result.rows) - 1, 1)
    dots = "".join(
        f'<circle cx="{MARGIN + index * step:.1f}" cy="{_height(row.relative):.1f}" r="3" '
        f'fill="{"#c00" if row is result.first_different else "#36c"}">'
        f"<title>{html.escape(row.module)}: {row.relative:.1e}</title></circle>"
        for index, row in enumerate(result.rows)
    )
    allowed = _height(result.tolerance)
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="relative error by depth">'
        f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{allowed:.1f}" y2="{allowed:.1f}" stroke="#c00"/>{dots}</svg>'
    )


def _height(relative: float) -> float:
    power = LEAST if not relative > 0 else min(max(math.log10(relative), LEAST), MOST)
    return HEIGHT - MARGIN - (power - LEAST) / (MOST - LEAST) * (HEIGHT - 2 * MARGIN)
