"""A runner's counters in memory that the C++ bridge reads without entering Python; written once per step."""

from __future__ import annotations

from array import array

from trunnion.interfaces.runner import RunnerCounters

FIELDS = (
    "replays",
    "eager_steps",
    "padded_tokens",
    "plan_calls",
    "plan_ns",
    "python_ns",
    "last_python_begin_ns",
    "last_python_end_ns",
    "last_plan_begin_ns",
    "last_plan_end_ns",
    "num_eager_reasons",
    "kv_event_steps",
    "prefix_level_steps",
    "token_type_steps",
)
"""int64 values in this order, then `MAX_REASONS` counts of eager steps; `RunnerCounters` of backend.h."""
MAX_REASONS = 16
OTHER_REASONS = "other reasons"


class StepCounters:
    """Copies `counters` to a fixed address. Times are `time.perf_counter`'s, which is CLOCK_MONOTONIC on Linux."""

    def __init__(self, counters: RunnerCounters) -> None:
        self._counters = counters
        self._values = array("q", bytes(8 * (len(FIELDS) + MAX_REASONS)))
        self._python_ns = 0

    @property
    def address(self) -> int:
        """Where the values lie, for as long as this object lives."""
        return self._values.buffer_info()[0]

    def reasons(self) -> list[str]:
        """Why steps ran eager, in the order of their counts; the last of `MAX_REASONS` stands for all later ones."""
        found = list(self._counters.eager)
        return found if len(found) < MAX_REASONS else [*found[: MAX_REASONS - 1], OTHER_REASONS]

    def write(self, begin_ns: int, end_ns: int) -> None:
        """Copy what the runner counted, after a step that ran from `begin_ns` to `end_ns`."""
        counters, values = self._counters, self._values
        self._python_ns += end_ns - begin_ns
        values[0] = counters.replays
        values[2] = counters.padded_tokens
        values[3] = counters.plans
        values[4] = counters.plan_ns
        values[5] = self._python_ns
        values[6] = begin_ns
        values[7] = end_ns
        values[8], values[9] = counters.last_plan_ns
        values[11] = counters.kv_event_steps
        values[12] = counters.prefix_level_steps
        values[13] = counters.token_type_steps
        if counters.eager:
            self._write_eager()

    def _write_eager(self) -> None:
        first, values = len(FIELDS), self._values
        eager = list(self._counters.eager.values())
        values[1] = sum(eager)
        if len(eager) >= MAX_REASONS:
            eager[MAX_REASONS - 1 :] = [sum(eager[MAX_REASONS - 1 :])]
        values[10] = len(eager)
        for index, steps in enumerate(eager):
            values[first + index] = steps
