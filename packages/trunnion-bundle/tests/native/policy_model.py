"""The batching policy once more, written to be read: the oracle that the C++ must agree with on every decision."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

NEVER = 2**63 - 1


@dataclass
class Chunk:
    """Rows of one request that run together."""

    id: int
    first: int
    rows: int
    shape: int
    bypass: bool
    priority: int
    order: int
    arrival: int
    deadline: int
    expiry: int


@dataclass
class Model:
    """One signature's waiting chunks and busy runners; `play` says all that it decides."""

    options: Mapping[str, Any]
    actual: Sequence[int]
    waiting: list[Chunk] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    arrivals: int = 0
    draining: bool = False

    @property
    def largest(self) -> int:
        return self.options["allowed"][-1]

    def size(self, rows: int) -> int:
        return min(size for size in self.options["allowed"] if size >= rows)

    def estimate(self, rows: int) -> int:
        latency = self.options["latency"]
        return latency[self.options["allowed"].index(self.size(rows))] if latency else 0

    def play(self, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Every decision on `events`, in order of time."""
        now = 0
        for event in events:
            now = self.pass_time(now, event["t"])
            if "submit" in event:
                self.submit(now, event["submit"])
            elif "cancel" in event:
                self.expire(now)
                found = [chunk for chunk in self.waiting if chunk.id == event["cancel"]]
                self.waiting = [chunk for chunk in self.waiting if chunk not in found]
                self.log.append({"t": now, "cancelled": [event["cancel"], bool(found)]})
            else:
                self.draining = True
                self.expire(now)
            self.start(now)
            self.log.append({"t": now, "oldest": self.oldest()})
        self.pass_time(now, NEVER)
        self.log.append({"end": sum(chunk.rows for chunk in self.waiting)})
        return self.log

    def pass_time(self, now: int, until: int) -> int:
        """Let batches end, requests expire and delays be spent before the event at `until`."""
        while True:
            ending = min(((end, runner) for runner, end in self.ends.items()), default=(NEVER, 0))
            waking = max(now, self.wake(now))
            time = min(ending[0], waking)
            if time == NEVER or time > until or (time == until and ending[0] != time):
                return max(now, until) if until != NEVER else now
            now = time
            if ending[0] == time:
                del self.ends[ending[1]]
            self.expire(now)
            self.start(now)

    def wake(self, now: int) -> int:
        times = [chunk.expiry for chunk in self.waiting]
        if len(self.ends) < self.options["num_runners"]:
            times += [self.due(now, queue)[0] for queue in self.queues()]
        return min(times, default=NEVER)

    def submit(self, now: int, given: Mapping[str, Any]) -> None:
        self.expire(now)
        rows, deadline = given["rows"], NEVER if given["deadline"] is None else given["deadline"]
        if reason := self.refuse(now, rows, deadline):
            self.log.append({"t": now, "refused": [given["id"], reason]})
            return
        expiry = deadline
        if limit := self.options["max_queue_delay"]:
            expiry = min(expiry, now + limit)
        bypass = bool(self.options["bypass_rows"]) and rows >= self.options["bypass_rows"]
        for first in range(0, rows, self.largest):
            part = min(self.largest, rows - first)
            place = (given["priority"], self.arrivals)
            self.waiting.append(Chunk(given["id"], first, part, given["shape"], bypass, *place, now, deadline, expiry))
            self.arrivals += 1

    def refuse(self, now: int, rows: int, deadline: int) -> str:
        limit = self.options["max_queue_rows"]
        if self.draining:
            return "draining"
        if (rows > self.largest and self.options["oversize"] == "refuse") or rows > limit:
            return "too_large"
        if deadline <= now:
            return "deadline"
        return "queue_full" if sum(chunk.rows for chunk in self.waiting) + rows > limit else ""

    def expire(self, now: int) -> None:
        late = sorted({(chunk.expiry, chunk.id) for chunk in self.waiting if chunk.expiry <= now})
        for _, id in late:
            self.log.append({"t": now, "expired": id})
        gone = {id for _, id in late}
        self.waiting = [chunk for chunk in self.waiting if chunk.id not in gone]

    def oldest(self) -> list[list[int]]:
        """Each priority of which something waits, and when the first of it came."""
        priorities = sorted({chunk.priority for chunk in self.waiting})
        return [[p, min(chunk.arrival for chunk in self.waiting if chunk.priority == p)] for p in priorities]

    def queues(self) -> Iterator[list[Chunk]]:
        for key in sorted({(chunk.shape, chunk.bypass) for chunk in self.waiting}):
            members = [chunk for chunk in self.waiting if (chunk.shape, chunk.bypass) == key]
            yield sorted(members, key=lambda chunk: (chunk.priority, chunk.order))

    def start(self, now: int) -> None:
        while len(self.ends) < self.options["num_runners"]:
            ready = [queue for queue in self.queues() if self.due(now, queue)[0] <= now]
            if not ready:
                return
            queue = min(ready, key=lambda queue: (queue[0].priority, queue[0].order))
            batch = self.choose(now, queue)
            rows = sum(chunk.rows for chunk in batch)
            runner = min(set(range(self.options["num_runners"])) - set(self.ends))
            parts = [[chunk.id, chunk.first, chunk.rows] for chunk in batch]
            reason = self.due(now, queue)[1]
            self.log.append({"t": now, "run": [runner, queue[0].shape, self.size(rows), rows, reason, parts]})
            self.ends[runner] = now + self.actual[self.options["allowed"].index(self.size(rows))]
            self.waiting = [chunk for chunk in self.waiting if chunk not in batch]

    def fitting(self, queue: Sequence[Chunk]) -> list[Chunk]:
        """The first of a queue, as many as the largest size holds without passing one over."""
        count = 0
        while count < len(queue) and sum(chunk.rows for chunk in queue[: count + 1]) <= self.largest:
            count += 1
        return list(queue[:count])

    def due(self, now: int, queue: Sequence[Chunk]) -> tuple[int, str]:
        """When a queue should start a batch on an idle runner, and why."""
        if queue[0].bypass:
            return now, "bypass"
        batch = self.fitting(queue)
        rows = sum(chunk.rows for chunk in batch)
        if rows == self.largest or len(batch) < len(queue):
            return now, "full"
        if self.draining:
            return now, "draining"
        if self.options["max_delay"] == 0:
            return now, "idle"
        spent = min(chunk.arrival for chunk in batch) + self.options["max_delay"]
        urgent = min(self.latest_start(chunk, rows) for chunk in batch)
        return (urgent, "deadline") if urgent < spent else (spent, "delay")

    def latest_start(self, chunk: Chunk, rows: int) -> int:
        return NEVER if chunk.deadline == NEVER else chunk.deadline - self.estimate(rows)

    def choose(self, now: int, queue: Sequence[Chunk]) -> list[Chunk]:
        """As many of the first as the padding policy says, and never fewer than cannot wait."""
        if queue[0].bypass:
            return [queue[0]]
        batch = self.fitting(queue)
        total = sum(chunk.rows for chunk in batch)
        late = [index for index, chunk in enumerate(batch) if self.latest_start(chunk, total) <= now]
        prefixes = [batch[:count] for count in range(max(late, default=0) + 1, len(batch) + 1)]
        rows_of = [sum(chunk.rows for chunk in prefix) for prefix in prefixes]
        if self.options["padding"] == "batch_down":
            down = max((size for size in self.options["allowed"] if size <= total), default=0)
            return max((p for p, rows in zip(prefixes, rows_of, strict=True) if rows <= down), key=len, default=batch)
        if self.options["padding"] == "least_cost":
            costs = [Fraction(self.estimate(rows), rows) for rows in rows_of]
            return max(p for p in zip((-c for c in costs), map(len, prefixes), prefixes, strict=True))[2]
        return batch


def parse(lines: str) -> list[list[dict[str, Any]]]:
    """What `policy_replay` printed, a list for each trace."""
    traces: list[list[dict[str, Any]]] = [[]]
    for line in lines.splitlines():
        traces[-1].append(json.loads(line))
        if "end" in traces[-1][-1]:
            traces.append([])
    return traces[:-1]
