"""The batching policy in C++ takes every decision that its model in Python takes, on random traces and by name."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from policy_model import Model, parse

Trace = tuple[dict[str, Any], list[dict[str, Any]]]
"""A line with "options" and "actual", and the events."""

COUNTS = (10, 50)
"""Traces per test and events per trace."""


def plain(**changed: Any) -> dict[str, Any]:
    options = {
        "allowed": [1, 4, 8],
        "max_delay": 0,
        "max_queue_rows": 64,
        "max_queue_delay": 0,
        "padding": "pad_up",
        "oversize": "split",
        "bypass_rows": 0,
        "num_priorities": 1,
        "num_runners": 1,
        "latency": [100, 100, 100],
    }
    return {**options, **changed}


def submit(t: int, id: int, rows: int, **changed: Any) -> dict[str, Any]:
    request = {"id": id, "shape": 0, "rows": rows, "priority": 0, "deadline": None}
    return {"t": t, "submit": {**request, **changed}}


def random_trace(seed: int, events: int) -> Trace:
    rng = random.Random(seed)
    allowed = sorted(rng.sample((1, 2, 3, 4, 6, 8, 12, 16, 32), rng.randint(1, 5)))
    largest = allowed[-1]
    latency = sorted(rng.randint(20, 400) for _ in allowed)
    options = {
        "allowed": allowed,
        "max_delay": rng.choice((0, 0, 50, 200, 1000)),
        "max_queue_rows": largest * rng.choice((1, 2, 4, 20)),
        "max_queue_delay": rng.choice((0, 0, 150, 600, 3000)),
        "padding": rng.choice(("pad_up", "batch_down", "least_cost")),
        "oversize": rng.choice(("split", "refuse")),
        "bypass_rows": rng.choice((0, 0, max(1, largest // 2), largest)),
        "num_priorities": 3,
        "num_runners": rng.choice((1, 1, 2, 3)),
        "latency": rng.choice(([], latency)),
    }
    # The times that batches take are not those that were measured.
    actual = [max(1, round(value * rng.uniform(0.5, 2))) for value in latency]
    shapes, pace, found, now = rng.randint(1, 3), rng.choice((5, 30, 150)), [], 0
    for id in range(events):
        now += round(rng.expovariate(1 / pace))
        roll = rng.random()
        if roll < 0.12 and id:
            found.append({"t": now, "cancel": rng.randrange(max(0, id - 8), id)})
        elif roll < 0.15 and id > 0.85 * events:
            found.append({"t": now, "drain": True})
        else:
            rows = rng.choice((1, 1, 1, rng.randint(1, largest), rng.randint(1, 3 * largest)))
            deadline = now + rng.choice((0, 60, 300, 2000)) if rng.random() < 0.5 else None
            request = {"shape": rng.randrange(shapes), "priority": rng.choice((0, 0, 1, 2)), "deadline": deadline}
            found.append(submit(now, id, rows, **request))
    return {"options": options, "actual": actual}, found


def replay(programs: Path, traces: Sequence[Trace]) -> list[list[dict[str, Any]]]:
    lines = "\n".join(json.dumps(line) for first, events in traces for line in (first, *events))
    command = [str(programs / "tests" / "native" / "policy_replay")]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, check=True)
    return parse(done.stdout)


def decide(programs: Path, events: Sequence[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """The decisions of the C++ on one trace, which the model must share."""
    first = {"options": plain(**options), "actual": [100, 100, 100]}
    (found,) = replay(programs, [(first, list(events))])
    assert found == Model(first["options"], first["actual"]).play(events)
    return found


def runs(decisions: Sequence[dict[str, Any]]) -> list[tuple[int, int, str, list[int]]]:
    """When, at what size, why, and whose rows."""
    return [
        (line["t"], line["run"][2], line["run"][4], [part[0] for part in line["run"][5]])
        for line in decisions
        if "run" in line
    ]


@pytest.mark.parametrize("block", range(50))
def test_decides_as_the_model_does(programs: Path, block: int) -> None:
    count, events = COUNTS
    traces = [random_trace(block * count + index, events) for index in range(count)]
    for (first, events_of), found in zip(traces, replay(programs, traces), strict=True):
        assert found == Model(first["options"], first["actual"]).play(events_of), first


def test_an_idle_runner_takes_a_request_at_once(programs: Path) -> None:
    found = decide(programs, [submit(0, 1, 1), submit(10, 2, 1), submit(20, 3, 2)])
    assert runs(found) == [(0, 1, "idle", [1]), (100, 4, "idle", [2, 3])]


def test_waits_as_asked_and_no_longer_when_full(programs: Path) -> None:
    events = [submit(0, 1, 1), submit(10, 2, 2), submit(500, 3, 4), submit(501, 4, 4)]
    assert runs(decide(programs, events, max_delay=60)) == [(60, 4, "delay", [1, 2]), (501, 8, "full", [3, 4])]


def test_waits_for_no_deadline_to_pass(programs: Path) -> None:
    found = decide(programs, [submit(0, 1, 1, deadline=300)], max_delay=1000)
    assert runs(found) == [(200, 1, "deadline", [1])]


@pytest.mark.parametrize(
    ("padding", "latency", "sizes"),
    [
        ("pad_up", [1600, 3200], [32]),
        ("batch_down", [1600, 3200], [16, 16]),
        ("least_cost", [1600, 3200], [16, 16]),
        ("least_cost", [1600, 1700], [32]),
    ],
)
def test_eighteen_rows_on_sixteen_and_thirty_two(
    programs: Path, padding: str, latency: list[int], sizes: list[int]
) -> None:
    events = [submit(0, 0, 16), *(submit(1, id, 1) for id in range(1, 19))]
    options = {"allowed": [16, 32], "padding": padding, "latency": latency}
    assert [size for _, size, _, _ in runs(decide(programs, events, **options))][1:] == sizes


def test_seventy_rows_on_thirty_two_are_cut_or_refused(programs: Path) -> None:
    options = {"allowed": [8, 16, 32], "max_queue_rows": 100}
    cut = decide(programs, [submit(0, 1, 70)], **options)
    assert [line["run"][5] for line in cut if "run" in line] == [[[1, 0, 32]], [[1, 32, 32]], [[1, 64, 6]]]
    assert {"t": 0, "refused": [1, "too_large"]} in decide(programs, [submit(0, 1, 70)], **options, oversize="refuse")


def test_large_requests_run_alone_and_at_once(programs: Path) -> None:
    events = [submit(0, 1, 1), submit(1, 2, 6), submit(2, 3, 1)]
    found = decide(programs, events, max_delay=500, bypass_rows=6)
    assert runs(found) == [(1, 8, "bypass", [2]), (500, 4, "delay", [1, 3])]


def test_the_more_urgent_priority_overtakes(programs: Path) -> None:
    events = [submit(0, 0, 8), submit(1, 1, 8, priority=2), submit(2, 2, 8, priority=1), submit(3, 3, 8, priority=0)]
    assert [ids for *_, ids in runs(decide(programs, events))] == [[0], [3], [2], [1]]


def test_nothing_lifts_a_low_priority_but_its_time_can_be_limited(programs: Path) -> None:
    """Strict, and seen by who looks at how long the oldest of each priority has waited."""
    steady = [submit(100 * turn - 50, turn + 1, 8) for turn in range(1, 6)]
    events = [submit(0, 0, 8), submit(1, 1, 8, priority=1), *steady]
    found = decide(programs, events)
    assert [ids for *_, ids in runs(found)] == [[0], [2], [3], [4], [5], [6], [1]]
    assert [line["oldest"] for line in found if "oldest" in line][-1] == [[0, 450], [1, 1]]
    found = decide(programs, events, max_queue_delay=250)
    assert {"t": 251, "expired": 1} in found
    assert [ids for *_, ids in runs(found)] == [[0], [2], [3], [4], [5], [6]]


def test_a_timeout_fires_while_the_runner_is_busy(programs: Path) -> None:
    events = [submit(0, 1, 8), submit(10, 2, 1), submit(10, 3, 1, deadline=30)]
    found = decide(programs, events, max_queue_delay=50)
    assert [line for line in found if "expired" in line] == [{"t": 30, "expired": 3}, {"t": 60, "expired": 2}]
    assert len(runs(found)) == 1


def test_cancelled_work_is_not_run_and_frees_its_place(programs: Path) -> None:
    events = [submit(0, 1, 8), submit(1, 2, 8), submit(2, 3, 8), {"t": 3, "cancel": 2}, submit(4, 4, 8)]
    found = decide(programs, events, max_queue_rows=8)
    assert {"t": 2, "refused": [3, "queue_full"]} in found
    assert [ids for *_, ids in runs(found)] == [[1], [4]]


def test_draining_refuses_what_comes_and_runs_what_waits(programs: Path) -> None:
    events = [submit(0, 1, 1), {"t": 5, "drain": True}, submit(6, 2, 1)]
    found = decide(programs, events, max_delay=1000)
    assert runs(found) == [(5, 1, "draining", [1])]
    assert {"t": 6, "refused": [2, "draining"]} in found
