"""Task updates: a captured call is issued anew at each replay, in its place, and the host waits for nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hardware.ascend.tests.simulated import SIMULATION

from trunnion_ascend.capture import NpuCapture, NpuSegment
from trunnion_ascend.task_updates import CallsAtOnce, TaskUser

DEVICE = torch.device("npu", 0)
CALLS = 3


class Scaling:
    """Multiplies by numbers of the host, as attention takes lengths of the host, call by call into one row each."""

    def __init__(self) -> None:
        self.tasks = CallsAtOnce()
        self.factors = [1.0] * CALLS
        self.rows = torch.zeros(CALLS, 4, device=DEVICE)

    def run(self, x: torch.Tensor) -> torch.Tensor:
        for index in range(CALLS):
            self.tasks.run(self._call(index), x + 0, self.rows[index])
        return self.rows.sum(0)

    def _call(self, index: int) -> Callable[..., None]:
        def multiply(x: torch.Tensor, out: torch.Tensor) -> None:
            if self.factors[index] < 0:
                raise ValueError("below zero")
            torch.mul(x, self.factors[index], out=out)

        return multiply


class Captured:
    """A graph of a scaling."""

    def __init__(self) -> None:
        self.scaling = Scaling()
        self.x = torch.ones(4, device=DEVICE)
        self.capture = NpuCapture(DEVICE)
        self.scaling.tasks = self.capture.tasks
        self.segment, self.out = self.record()

    def record(self) -> tuple[NpuSegment, torch.Tensor]:
        self.capture.begin()
        out = self.scaling.run(self.x)
        return self.capture.end(), self.capture.non_owning(out)

    def replay(self, *factors: float) -> None:
        self.scaling.factors = list(factors)
        self.segment.replay()

    def rows(self) -> list[float]:
        return self.scaling.rows[:, 0].tolist()


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture
def captured() -> Iterator[Captured]:
    yield Captured()
    torch.npu.synchronize()


def test_without_a_graph_calls_are_made_at_once() -> None:
    scaling = Scaling()
    assert isinstance(scaling, TaskUser)
    scaling.factors = [2.0, 3.0, 4.0]
    assert scaling.run(torch.ones(4, device=DEVICE)).tolist() == [9.0] * 4


def test_between_captures_calls_are_made_at_once(captured: Captured) -> None:
    captured.scaling.factors = [2.0, 3.0, 4.0]
    assert captured.scaling.run(captured.x).tolist() == [9.0] * 4


@pytest.mark.parametrize("held", [False, True], ids=["at-once", "update-stream-held"])
def test_a_replay_takes_what_the_host_says_now(captured: Captured, held: bool) -> None:
    stream = captured.capture.tasks.stream if held else torch.npu.Stream()
    for factors in ((2.0, 3.0, 4.0), (1.0, 1.0, 1.0), (100.0, 5.0, 0.5)):
        with SIMULATION.held(stream):
            captured.replay(*factors)
            torch.npu.current_stream().synchronize()
        assert captured.rows() == list(factors)


def test_an_update_does_not_overtake_the_replay_before(captured: Captured) -> None:
    """Two replays in flight, the second with other numbers; what each computed is copied behind it."""
    kept = torch.zeros(2, CALLS, device=DEVICE)
    with SIMULATION.late():
        for index, factors in enumerate(((2.0, 3.0, 4.0), (7.0, 8.0, 9.0))):
            captured.replay(*factors)
            kept[index].copy_(captured.scaling.rows[:, 0])
    assert kept.tolist() == [[2.0, 3.0, 4.0], [7.0, 8.0, 9.0]]


def test_updates_have_a_stream_beside_the_replay(captured: Captured) -> None:
    """A stream may be lent twice; updates behind the replay that waits for them would be waited for for good."""
    with torch.npu.stream(captured.capture.tasks.stream):
        captured.replay(2.0, 3.0, 4.0)
        assert captured.rows() == [2.0, 3.0, 4.0]


def test_the_host_waits_for_nothing(captured: Captured) -> None:
    captured.replay(1.0, 1.0, 1.0)
    before = SIMULATION.count("waits"), SIMULATION.count("device_allocations"), SIMULATION.count("updates")
    with SIMULATION.late():
        captured.replay(2.0, 3.0, 4.0)
        assert SIMULATION.count("waits") == before[0]
        assert SIMULATION.count("updates") == before[2], "nothing has run yet"
    torch.npu.synchronize()
    assert SIMULATION.count("device_allocations") == before[1]
    assert SIMULATION.count("updates") == before[2] + CALLS
    assert captured.rows() == [2.0, 3.0, 4.0]


def test_a_call_that_fails_leaves_nothing_waiting(captured: Captured) -> None:
    captured.replay(2.0, 3.0, 4.0)
    with pytest.raises(ValueError, match="below zero"):
        captured.replay(5.0, -1.0, 6.0)
    torch.npu.synchronize()
    assert captured.rows() == [5.0, 3.0, 4.0], "what was not updated runs as it was"
    captured.replay(7.0, 8.0, 9.0)
    assert captured.rows() == [7.0, 8.0, 9.0]


def test_two_graphs_keep_their_own_tasks(captured: Captured) -> None:
    first, (second, _) = captured.segment, captured.record()
    for segment, factors in ((first, (2.0, 3.0, 4.0)), (second, (5.0, 6.0, 7.0)), (first, (1.0, 2.0, 3.0))):
        captured.scaling.factors = list(factors)
        segment.replay()
        assert captured.rows() == list(factors)


def test_tasks_own_nothing_of_the_pool() -> None:
    """What a call read is free for the next one: three calls, one address."""
    captured = Captured()
    addresses = {task.tensors[0].data_ptr() for task in captured.segment.tasks}
    assert len(addresses) == 1
