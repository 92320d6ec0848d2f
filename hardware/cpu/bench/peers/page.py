"""The figures as one page for a browser: bars for each column, the best of a group as long as the column is wide."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measures import COLUMNS, COSTS
from results import OURS, Group, Row
from table import NOTES, agreement, figure, share

BAR, LINE, WIDTH = 150, 20, 190
STYLE = """
body{font:14px system-ui,sans-serif;margin:24px auto;padding:0 12px;max-width:1500px;color:#222}
h1{font-size:20px} h2{font-size:16px;margin-top:28px} p{max-width:900px} table{border-collapse:collapse}
td,th{padding:3px 8px;text-align:left;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.verdict td{font-size:12px} .won{color:#070} .lost{color:#b00} .none{color:#777;white-space:normal}
svg rect{fill:#9ab} tr.ours svg rect{fill:#36c} svg text{font-size:12px;fill:#222}
tr.ours td:first-child{font-weight:bold}
"""


def page(groups: Sequence[Group], machine: Mapping[str, Any]) -> str:
    """HTML that needs nothing from anywhere."""
    facts = ", ".join(f"{value} {name}" for name, value in machine.items())
    body = "\n".join(_group(group) for group in groups)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>trunnion and its peers</title><style>{STYLE}</style></head><body>
<h1>trunnion and its peers</h1>
<p>{html.escape(facts)}. {html.escape(" ".join(NOTES))}</p>
{body}
</body></html>
"""


def _group(group: Group) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *COLUMNS, "limit", "tokens"))
    rows = "\n".join(_row(group, row) for row in group.rows)
    verdicts = "".join(_verdict(group.verdict(column)) for column in COLUMNS)
    rate = f"{group.read_rate / 1e9:.1f} GB/s"
    return f"""<h2>{html.escape(group.model)}, {group.bits} bits; memory is read at {rate}</h2>
<table><tr>{head}</tr>
{rows}
<tr class="verdict"><td>{OURS}</td>{verdicts}<td></td><td></td></tr></table>"""


def _row(group: Group, row: Row) -> str:
    kind = ' class="ours"' if row.engine == OURS else ""
    name = f'<td title="{html.escape(f"{row.version} {row.file}")}">{html.escape(row.engine)}</td>'
    if "" in row.failures and not row.samples:
        return (
            f'<tr{kind}>{name}<td class="none" colspan="{len(COLUMNS) + 2}">{html.escape(row.failures[""])}</td></tr>'
        )
    cells = "".join(_cells(group, row))
    return f"<tr{kind}>{name}{cells}<td>{share(group.share_of_limit(row))}</td><td>{agreement(row)}</td></tr>"


def _cells(group: Group, row: Row) -> Iterator[str]:
    for column in COLUMNS:
        value = row.median(column)
        if value is None:
            yield f'<td class="none" title="{html.escape(row.reason(column))}">-</td>'
            continue
        most = max(found for other in group.rows if (found := other.median(column)))
        text, note = figure(column, value), f"spread {row.spread(column):.0%}; {_better(column)} is better"
        yield (
            f'<td><svg width="{WIDTH}" height="{LINE}" role="img" aria-label="{text}"><title>{note}</title>'
            f'<rect width="{BAR * value / most:.1f}" height="{LINE}" opacity="0.45"/>'
            f'<text x="4" y="{LINE - 5}">{text}</text></svg></td>'
        )


def _better(column: str) -> str:
    return "less" if column in COSTS else "more"


def _verdict(text: str) -> str:
    kind = text.partition(",")[0]
    return f'<td class="{kind if kind in ("won", "lost") else "none"}">{html.escape(text)}</td>'
