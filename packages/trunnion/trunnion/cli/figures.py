"""What a run cost: one line, or the whole table of the host's counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def figures_line(stats: Mapping[str, Any]) -> str:
    """Prefill and decode speed, steps, execute calls, blocks, preemptions."""
    blocks = f"blocks {stats['blocks_peak']}/{stats['blocks_total']} at peak, {stats['blocks_used']} in use now"
    return (
        f"prefill {_speed(stats, 'prefill')}, decode {_speed(stats, 'decode')}, {stats['steps']} steps, "
        f"{stats['execute_calls']} execute calls, {blocks}, {stats['preemptions']} preemptions"
    )


def figures_table(stats: Mapping[str, Any]) -> str:
    """Every counter of the host, one per line."""
    plain = {key: value for key, value in stats.items() if not isinstance(value, (dict, list, tuple))}
    width = max(map(len, plain), default=0)
    return "\n".join(f"{key:{width}}  {_plain(value)}" for key, value in plain.items())


def _speed(stats: Mapping[str, Any], phase: str) -> str:
    tokens, seconds = stats[f"{phase}_tokens"], stats[f"{phase}_seconds"]
    return f"{tokens} tokens" + (f" at {tokens / seconds:.1f}/s" if seconds > 0 and tokens else "")


def _plain(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
