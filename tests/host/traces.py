"""Reads a host's trace and checks what must hold for every one of them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PARTS = ("schedule", "build inputs", "execute", "sample", "publish")
ROUNDING_US = 0.002
"""Begins and durations are in whole nanoseconds."""


@dataclass(frozen=True)
class Trace:
    """The events by phase; spans per track in order of time, outer before inner."""

    spans: dict[int, list[dict[str, Any]]]
    lives: dict[int, list[dict[str, Any]]]
    counters: dict[str, list[dict[str, int]]]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for spans in self.spans.values() for span in spans if span["name"] == name]


def read_trace(path: Path) -> Trace:
    """Parse the file; every event has what the format asks for."""
    spans, lives, counters = defaultdict(list), defaultdict(list), defaultdict(list)
    for event in json.loads(path.read_text()):
        assert {"name", "ph", "pid", "ts"} <= set(event), event
        if event["ph"] == "X":
            assert event["dur"] >= 0
            spans[event["tid"]].append(event)
        elif event["ph"] in "bne":
            assert event["cat"] == "request"
            lives[event["id"]].append(event)
        elif event["ph"] == "C":
            counters[event["name"]].append(event["args"])
        else:
            assert (event["ph"], event["name"]) == ("M", "thread_name")
    for track in spans.values():
        track.sort(key=lambda span: (span["ts"], -span["dur"]))
    return Trace(dict(spans), dict(lives), dict(counters))


def parents(track: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """(name, name of the span around it or "") of each span; spans that cross fail."""
    found, stack = [], []
    for span in track:
        while stack and span["ts"] >= stack[-1]["ts"] + stack[-1]["dur"] - ROUNDING_US:
            stack.pop()
        if stack:
            assert span["ts"] + span["dur"] <= stack[-1]["ts"] + stack[-1]["dur"] + ROUNDING_US, (stack[-1], span)
        found.append((span["name"], stack[-1]["name"] if stack else ""))
        stack.append(span)
    return found


def check_trace(trace: Trace, *, steps: int, requests: int) -> None:
    """One span per step with its parts inside, numbered from 1; requests that begin, wait, and end once."""
    assert [span["args"]["number"] for span in trace.named("step")] == list(range(1, steps + 1))
    for name in PARTS:
        assert len(trace.named(name)) == steps, name
    assert len(trace.counters["requests"]) == len(trace.counters["blocks"]) == steps
    assert len(trace.lives) == requests
    for events in trace.lives.values():
        phases = Counter((event["name"], event["ph"]) for event in events)
        for life in ("request", "waiting"):
            assert phases[life, "b"] == phases[life, "e"] == 1, events
        assert phases["first token", "n"] <= 1
        times = [event["ts"] for event in events]
        assert times == sorted(times), events
