"""Chooses among a kernel's few configurations: timed while warming up, never in a step and never in a capture."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Key = tuple[int | str | None, ...]
"""What a choice may depend on; last the size that steps differ in, by its `size_class`."""
Run = Callable[["Config"], Any]
Measure = Callable[[Callable[[], Any]], float]
"""Of a call, its time in seconds; infinite for one that cannot run."""


class CannotRunError(RuntimeError):
    """A configuration that there is no kernel for on this machine: its time is infinite, and the first one runs."""


@dataclass(frozen=True)
class Config:
    """Block sizes by the kernel's own names, and what the compiler is told."""

    blocks: Mapping[str, int] = field(default_factory=dict)
    num_warps: int = 4
    num_stages: int = 2

    def __getitem__(self, name: str) -> int:
        return self.blocks[name]

    @property
    def options(self) -> dict[str, int]:
        """Keywords of a launch."""
        return {"num_warps": self.num_warps, "num_stages": self.num_stages}


@dataclass(frozen=True)
class Space:
    """All configurations that one kernel may run with; the first that `fits` is the one it starts with.

    Launching a kernel of a space several times over must give what one launch gives: tuning does so.
    """

    name: str
    configs: tuple[Config, ...]

    def fitting(self, fits: Callable[[Config], bool] | None = None) -> tuple[Config, ...]:
        """The configurations that can run a call."""
        found = tuple(config for config in self.configs if fits is None or fits(config))
        assert found, f"no configuration of {self.name} fits"
        return found


@dataclass(kw_only=True)
class Budget:
    """How much may be timed. A kind of call that was begun is timed with all its configurations."""

    max_seconds: float
    """Compiling included."""
    max_timings: int
    clock: Callable[[], float] = time.perf_counter
    timings: Counter[str] = field(default_factory=Counter)
    """Kernel -> configurations timed."""
    refused: Counter[str] = field(default_factory=Counter)
    """Kernel -> kinds of call that there was nothing left for."""
    started: float | None = None

    @property
    def seconds(self) -> float:
        """Since the first question."""
        return 0.0 if self.started is None else self.clock() - self.started

    def allows(self, kernel: str, count: int) -> bool:
        """Whether `count` configurations of a kernel may be timed now."""
        if self.started is None:
            self.started = self.clock()
        if self.seconds >= self.max_seconds or self.timings.total() + count > self.max_timings:
            self.refused[kernel] += 1
            return False
        self.timings[kernel] += count
        return True


@dataclass(frozen=True, kw_only=True)
class _Timing:
    measure: Measure
    budget: Budget
    is_capturing: Callable[[], bool]


class Tuner:
    """Which configuration each kernel uses for each kind of call on this process's device.

    A call outside `tuning` never measures: it takes what was chosen for its kind, or for the nearest size, or the
    space's first configuration that fits; `stand_ins` says which kinds had no choice of their own.
    """

    def __init__(self) -> None:
        self._chosen: dict[tuple[str, Key], int] = {}
        self._taken: dict[tuple[str, Key], int | None] = {}
        self._timing: _Timing | None = None
        self.stand_ins: dict[str, str] = {}
        """`kernel|key` of calls without a choice -> what they run with."""

    def run(self, space: Space, key: Key, run: Run, fits: Callable[[Config], bool] | None = None) -> Any:
        """`run(config)` with the configuration for `key`.

        Raises:
            ValueError: this call would be timed, and the stream is capturing.
        """
        configs = space.fitting(fits)
        if len(configs) == 1:
            return run(configs[0])
        kind = space.name, key
        if self._timing is not None and kind not in self._chosen:
            self._choose(space, kind, configs, run, self._timing)
        if kind not in self._taken:
            self._taken[kind] = self._chosen[kind] if kind in self._chosen else self._stand_in(space, key)
        index = self._taken[kind]
        # Keys may stand for calls that not all fit what one of them chose.
        is_there = index is not None and 0 <= index < len(space.configs) and space.configs[index] in configs
        try:
            return run(space.configs[index] if is_there else configs[0])
        except CannotRunError:
            # Chosen in an earlier start, when it could.
            return run(configs[0])

    @contextmanager
    def tuning(self, measure: Measure, budget: Budget, is_capturing: Callable[[], bool]) -> Iterator[None]:
        """Within this context calls that have no choice yet time their configurations, while the budget lasts."""
        self._timing = _Timing(measure=measure, budget=budget, is_capturing=is_capturing)
        try:
            yield
        finally:
            self._timing = None

    @property
    def is_tuning(self) -> bool:
        """Whether this is within `tuning`, where compiling is welcome."""
        return self._timing is not None

    def choices(self) -> Mapping[tuple[str, Key], int]:
        """(kernel, key) -> index among the space's configurations."""
        return dict(self._chosen)

    def take(self, choices: Iterable[tuple[str, Key, int]]) -> None:
        """Choices made before, of kernels as they are now."""
        self._chosen.update({(name, key): index for name, key, index in choices})
        self._forget_stand_ins()

    def clear(self) -> None:
        """Forget all choices."""
        self._chosen.clear()
        self._forget_stand_ins()

    def _choose(
        self, space: Space, kind: tuple[str, Key], configs: tuple[Config, ...], run: Run, timing: _Timing
    ) -> None:
        if timing.is_capturing():
            raise ValueError(f"{space.name} cannot be tuned while the stream is capturing: tune before the first graph")
        if not timing.budget.allows(space.name, len(configs)):
            return
        times = [timing.measure(lambda config=config: run(config)) for config in configs]
        self._chosen[kind] = space.configs.index(configs[times.index(min(times))])
        self._forget_stand_ins()

    def _stand_in(self, space: Space, key: Key) -> int | None:
        """Of the nearest size that has a choice, or None."""
        same = [other for name, other in self._chosen if name == space.name and other[:-1] == key[:-1]]
        if not same:
            self.stand_ins[_label(space.name, key)] = "its first configuration"
            return None
        nearest = min(same, key=lambda other: abs(_logarithm(other) - _logarithm(key)))
        self.stand_ins[_label(space.name, key)] = f"the choice for size {nearest[-1]}"
        return self._chosen[space.name, nearest]

    def _forget_stand_ins(self) -> None:
        self._taken.clear()
        self.stand_ins.clear()


def _label(name: str, key: Key) -> str:
    return f"{name}|{','.join(map(str, key))}"


def _logarithm(key: Key) -> float:
    size = key[-1]
    assert isinstance(size, int), f"the last of {key} is no size"
    return math.log2(max(size, 1))


TUNER = Tuner()
"""The one tuner of a process, which has one device. Torch's dispatcher hands an operator's kernel its operands and
nothing else, so that no object which owned a tuner could reach it."""


def size_class(n: int) -> int:
    """Numbers of tokens that share a choice: the power of two at or above, at most 4096."""
    return min(1 << max(n - 1, 0).bit_length(), 4096)
