"""What a run cost: one line, or the whole table of the host's counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def figures_line(stats: Mapping[str, Any]) -> str:
    """Prefill and decode speed, steps, execute calls, replays, blocks, preemptions, accepted drafts."""
    blocks = f"blocks {stats['blocks_peak']}/{stats['blocks_total']} at peak, {stats['blocks_used']} in use now"
    return (
        f"prefill {_speed(stats, 'prefill')}, decode {_speed(stats, 'decode')}, {stats['steps']} steps, "
        f"{stats['execute_calls']} execute calls, {stats['replays']} replays, {stats['eager_steps']} eager, {blocks}, "
        f"{stats['preemptions']} preemptions" + _drafts(stats)
    )


def figures_table(stats: Mapping[str, Any]) -> str:
    """Every counter of the host, one per line, and what they say of one step."""
    plain = {key: value for key, value in stats.items() if not isinstance(value, (dict, list, tuple))}
    plain |= {key: _by_place(stats[key]) for key in ("drafted_at", "accepted_at") if stats.get(key)}
    plain |= _per_step(stats)
    width = max(map(len, plain), default=0)
    return "\n".join(f"{key:{width}}  {_plain(value)}" for key, value in plain.items())


def slow_paths(
    stats: Mapping[str, Any], report: Mapping[str, Any], declined: Mapping[tuple[str, str], int]
) -> list[str]:
    """What ran slower than one might hope, one per line: eager steps, what stands on the reference, declined calls.

    `report` is the executor's of `warm_up`, `declined` are calls that a package's kernel handed to the reference.
    """
    return [
        *(f"eager, {steps} steps: {reason}" for reason, steps in stats["eager"].items()),
        *(f"eager, {steps} steps of the draft: {why}" for why, steps in stats.get("draft_eager", {}).items()),
        *(f"may run eager, {what}: {why}" for what, why in report.get("eager", {}).items()),
        *(f"on the reference, {what}: {why}" for what, why in report.get("on_reference", {}).items()),
        *(f"compiled, {what}: {why}" for what, why in report.get("compiled", {}).items()),
        *(f"missing, {what}: {why}" for what, why in report.get("missing", {}).items()),
        *(f"untuned, {what}: {why}" for what, why in report.get("untuned", {}).items()),
        *(f"declined, {calls} calls of {name}: {why}" for (name, why), calls in declined.items()),
    ]


def _per_step(stats: Mapping[str, Any]) -> dict[str, float]:
    steps = stats["steps"] or 1
    tokens = stats["prefill_tokens"] + stats["decode_tokens"] + stats["padded_tokens"]
    return {
        "gil_wait_us_per_step": 1e6 * stats["gil_wait_seconds"] / steps,
        "plan_us_per_step": 1e6 * stats["plan_seconds"] / steps,
        "python_us_per_step": 1e6 * stats["python_seconds"] / steps,
        "bucket_waste_percent": 100.0 * stats["padded_tokens"] / (tokens or 1),
    }


def _drafts(stats: Mapping[str, Any]) -> str:
    if not stats.get("num_drafts"):
        return ""
    drafted, accepted = stats["drafted_tokens"], stats["accepted_tokens"]
    return f", {accepted} of {drafted} drafts accepted ({100 * accepted / (drafted or 1):.0f} %)"


def _by_place(counts: Sequence[int]) -> str:
    return " ".join(map(str, counts))


def _speed(stats: Mapping[str, Any], phase: str) -> str:
    tokens, seconds = stats[f"{phase}_tokens"], stats[f"{phase}_seconds"]
    return f"{tokens} tokens" + (f" at {tokens / seconds:.1f}/s" if seconds > 0 and tokens else "")


def _plain(value: object) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)
