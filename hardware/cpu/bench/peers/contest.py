"""Runs one group: its engines stay alive and take turns, one measurement at a time, while the others idle."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from contestants import Engine
from measures import PREFILL_LEN, PROMPT_LEN, Call, calls
from protocol import Generated, Limits, Prompts
from results import Row
from worker import Worker, WorkerError

OPEN_SECONDS, CALL_SECONDS = 900.0, 300.0
SETTLE_SECONDS = 0.25
"""Before each measurement: threads of the last engine that spin for work have gone to sleep by then."""
CHECKED_TOKENS = 32
SEED = 1
REFERENCE = "transformers"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An engine in one group: what it reads and how its worker is started."""

    engine: Engine
    python: str
    path: Path
    row: Row
    """What is found is written to it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a group is run."""

    threads: int
    rounds: int
    is_quick: bool
    vocabulary: int
    """Prompts are drawn from so many tokens."""
    scratch: Path
    """For caches that engines keep between starts, and their logs."""


class Starter(Protocol):
    """Makes a worker; `Worker` with what an entry says, or a test's."""

    def __call__(self, entry: Entry, settings: Settings) -> Worker: ...


def start_worker(entry: Entry, settings: Settings) -> Worker:
    cache = settings.scratch / entry.engine.name
    cache.mkdir(parents=True, exist_ok=True)
    variables = entry.engine.environment(cache, settings.threads)
    return Worker(entry.engine.command(entry.python), variables, settings.scratch / f"{entry.engine.name}.log")


def run_group(
    entries: Sequence[Entry],
    settings: Settings,
    bandwidth: Callable[[], float],
    progress: Callable[[str], None],
    start: Starter = start_worker,
) -> list[float]:
    """Fill each entry's row: start-ups, rounds of every rate, the check of tokens, memory.

    Round 0 warms up and does not count. An engine that fails a call keeps its other figures and is asked that one no
    more; one that dies is out, with its reason for what is missing.

    Returns:
        The bandwidths measured, one a round, at its begin.
    """
    found = []
    runners = [_Runner(entry, settings, start) for entry in entries]
    try:
        for runner in runners:
            progress(f"{runner.name}: starts")
            runner.begin()
        _check_tokens(runners, settings, progress)
        rates = calls(is_quick=settings.is_quick)
        for index in range(settings.rounds + 1):
            if index:
                found.append(bandwidth())
            for call in rates:
                prompts = call.prompts(index, settings.vocabulary)
                # Whoever is first in one round is last in the next but some.
                for runner in _rotated([runner for runner in runners if runner.can(call.name)], index):
                    progress(f"round {index} of {settings.rounds}, {call.name}: {runner.name}")
                    _measure(runner, runners, call, prompts, counts=index > 0)
        for runner in runners:
            runner.note_memory()
    finally:
        for runner in runners:
            runner.end()
    return found


class _Runner:
    """One entry and its worker."""

    def __init__(self, entry: Entry, settings: Settings, start: Starter) -> None:
        self.entry, self._settings, self._start = entry, settings, start
        self.name = entry.engine.name
        self.worker: Worker | None = None

    def begin(self) -> None:
        """Start it cold, unless it is quick; then warm, to stay."""
        shutil.rmtree(self._settings.scratch / self.name, ignore_errors=True)
        columns = ("start cold",) if self._settings.is_quick else ("start cold", "start warm")
        for column in columns:
            self.end()
            if column == "start cold":
                _forget_pages(self.entry.path)
            started = time.perf_counter()
            try:
                self.worker = self._start(self.entry, self._settings)
                self.worker.ask("open", OPEN_SECONDS, path=str(self.entry.path), limits=_limits(self._settings))
                first = [[100 + index for index in range(PROMPT_LEN)]]
                self.worker.ask("generate", CALL_SECONDS, prompts=first, new_tokens=1)
            except (WorkerError, OSError) as error:
                self.entry.row.failures[""] = f"did not start: {error}"
                self.end()
                return
            self.entry.row.samples[column] = [time.perf_counter() - started]

    def can(self, column: str) -> bool:
        return self.worker is not None and column not in self.entry.row.failures

    def generate(self, column: str, prompts: Prompts, new_tokens: int) -> Generated | None:
        """What it answers; None, with the reason noted, if it does not."""
        assert self.worker is not None
        try:
            return Generated(**self.worker.ask("generate", CALL_SECONDS, prompts=prompts, new_tokens=new_tokens))
        except WorkerError as error:
            self.entry.row.failures["" if error.is_dead else column] = str(error)
            if error.is_dead:
                self.end()
            return None

    def note_memory(self) -> None:
        if self.worker is not None:
            self.entry.row.samples["memory"] = [self.worker.peak_bytes()]

    def cpu_seconds(self) -> float:
        return 0.0 if self.worker is None else self.worker.cpu_seconds()

    def end(self) -> None:
        if self.worker is not None:
            self.worker.close()
            self.worker = None


def _measure(runner: _Runner, runners: Sequence[_Runner], call: Call, prompts: Prompts, *, counts: bool) -> None:
    row = runner.entry.row
    time.sleep(SETTLE_SECONDS)
    others = [other for other in runners if other is not runner]
    before, begin = [other.cpu_seconds() for other in others], time.perf_counter()
    answer = runner.generate(call.name, prompts, call.new_tokens)
    seconds = time.perf_counter() - begin
    for other, used in zip(others, before, strict=True):
        if other.worker is not None:
            other.entry.row.idle_share = max(other.entry.row.idle_share, (other.cpu_seconds() - used) / seconds)
    if answer is not None and counts:
        row.samples.setdefault(call.name, []).append(call.rate(answer.times))


def _check_tokens(runners: Sequence[_Runner], settings: Settings, progress: Callable[[str], None]) -> None:
    """Compare greedy tokens of one prompt with the reference's, up to the first that differs."""
    draw = random.Random(SEED)
    prompts = [[draw.randrange(100, settings.vocabulary) for _ in range(PROMPT_LEN)]]
    answers: dict[str, Sequence[int]] = {}
    for runner in runners:
        if runner.worker is not None:
            progress(f"{runner.name}: tokens")
            answer = runner.generate("tokens", prompts, CHECKED_TOKENS)
            if answer is not None:
                answers[runner.name] = answer.tokens[0]
    expected = answers.get(REFERENCE)
    for runner in runners:
        if expected is not None and runner.name in answers:
            runner.entry.row.agreement = _equal(expected, answers[runner.name]), CHECKED_TOKENS


def _equal(expected: Sequence[int], found: Sequence[int]) -> int:
    """Tokens before the first that differs; what follows one is another text."""
    pairs = list(zip(expected, found, strict=False))
    return next((index for index, (one, other) in enumerate(pairs) if one != other), len(pairs))


def _limits(settings: Settings) -> Mapping[str, int]:
    rates = calls(is_quick=settings.is_quick)
    longest = max([PREFILL_LEN, *(call.prompt_len + call.new_tokens for call in rates)]) + PROMPT_LEN
    most = max(call.batch * (call.prompt_len + call.new_tokens) for call in rates) + PREFILL_LEN
    batch = max(call.batch for call in rates)
    limits = Limits(threads=settings.threads, max_seqs=batch, max_len=longest, max_tokens=most)
    return vars(limits)


def _rotated(runners: Sequence[_Runner], by: int) -> list[_Runner]:
    first = by % len(runners) if runners else 0
    return [*runners[first:], *runners[:first]]


def _forget_pages(path: Path) -> None:
    """Let the system forget what it keeps of the model's files in memory, where it has such a call."""
    if not hasattr(os, "posix_fadvise"):
        return
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
