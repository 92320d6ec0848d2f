"""Captures, task groups and updates on the simulated NPU, in the ways that are right and in those that are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hardware.ascend.tests.simulated import SIMULATION

DEVICE = torch.device("npu", 0)


@pytest.fixture(autouse=True)
def _own_stream() -> Iterator[None]:
    """A capture that fails at its end leaves its stream the current one."""
    current = torch.npu.current_stream()
    yield
    torch.npu.set_stream(current)


def captured(make: Callable[[], torch.Tensor]) -> tuple[torch.npu.NPUGraph, torch.Tensor]:
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        result = make()
    return graph, result


def test_nothing_runs_while_it_is_captured() -> None:
    x = torch.ones(4, device=DEVICE)
    torch.npu.synchronize()
    ran = SIMULATION.calls["aclnnInplaceAdds"]
    graph, _ = captured(lambda: x.add_(1))
    assert SIMULATION.calls["aclnnInplaceAdds"] == ran
    assert x.tolist() == [1, 1, 1, 1]
    graph.replay()
    graph.replay()
    assert x.tolist() == [3, 3, 3, 3]


def test_a_replay_reads_what_lies_there_now() -> None:
    x = torch.ones(4, device=DEVICE)
    graph, result = captured(lambda: (x * 2 + 1).sum(0, keepdim=True))
    x.fill_(5)
    graph.replay()
    assert result.item() == 44


@pytest.mark.parametrize(
    ("wait", "name"),
    [
        pytest.param(lambda x: x.cpu(), "captured", id="copy to the host"),
        pytest.param(lambda x: x.sum().item(), "captured", id="value on the host"),
        pytest.param(lambda x: torch.npu.current_stream().synchronize(), "aclrtSynchronizeStream", id="stream"),
        pytest.param(lambda x: torch.npu.synchronize(), "aclrtSynchronizeDevice", id="device"),
        pytest.param(lambda x: torch.nonzero(x), "aclrtSynchronizeStream", id="shape by value"),
        pytest.param(lambda x: x.copy_(torch.zeros(4), non_blocking=True), "not pinned", id="host memory not pinned"),
    ],
)
def test_what_waits_is_refused_in_a_capture(wait: Callable[[torch.Tensor], object], name: str) -> None:
    x = torch.ones(4, device=DEVICE)
    with pytest.raises(RuntimeError, match=name):
        captured(lambda: wait(x))
    torch.npu.synchronize()
    assert x.tolist() == [1, 1, 1, 1]


def test_a_second_stream_joins_a_capture_and_comes_back() -> None:
    x, side = torch.ones(4, device=DEVICE), torch.npu.Stream()

    def fork() -> torch.Tensor:
        main = torch.npu.current_stream()
        side.wait_stream(main)
        with torch.npu.stream(side):
            x.add_(1)
        main.wait_stream(side)
        return x.mul_(3)

    graph, _ = captured(fork)
    graph.replay()
    assert x.tolist() == [6, 6, 6, 6]


def test_a_stream_that_joins_a_capture_must_come_back() -> None:
    x, side = torch.ones(4, device=DEVICE), torch.npu.Stream()

    def fork() -> torch.Tensor:
        side.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(side):
            return x.add_(1)

    with pytest.raises(RuntimeError, match="its last task is waited for by nobody"):
        captured(fork)


class Scaled:
    """A graph of `y = x * factor` with a factor that the host gives, as it gives the lengths of requests."""

    def __init__(self) -> None:
        self.x = torch.ones(4, device=DEVICE)
        self.y = torch.zeros(4, device=DEVICE)
        self.event = torch.npu.ExternalEvent()
        self.update_stream = torch.npu.Stream()
        self.graph = torch.npu.NPUGraph()
        with torch.npu.graph(self.graph):
            stream = torch.npu.current_stream()
            self.event.wait(stream)
            self.event.reset(stream)
            torch.npu.graph_task_group_begin(stream)
            torch.mul(self.x, 1.0, out=self.y)
            self.handle = torch.npu.graph_task_group_end(stream)

    def update(self, factor: float) -> None:
        with torch.npu.stream(self.update_stream):
            torch.npu.graph_task_update_begin(self.update_stream, self.handle)
            torch.mul(self.x, factor, out=self.y)
            torch.npu.graph_task_update_end(self.update_stream)

    def signal(self) -> None:
        self.event.record(self.update_stream)

    def result(self) -> float:
        torch.npu.synchronize()
        return float(self.y[0])


@pytest.mark.parametrize("order", ["update, replay", "replay, update"])
@pytest.mark.parametrize("held", [False, True], ids=["at once", "update stream held"])
def test_an_update_before_its_event_is_what_the_replay_does(order: str, held: bool) -> None:
    scaled = Scaled()
    for factor in (2.0, 5.0):
        with SIMULATION.held(scaled.update_stream) if held else SIMULATION.held(torch.npu.Stream()):
            if order.startswith("replay"):
                scaled.graph.replay()
            scaled.update(factor)
            scaled.signal()
            if order.startswith("update"):
                scaled.graph.replay()
            assert scaled.result() == factor


def test_an_event_before_its_update_leaves_the_task_as_it_was() -> None:
    scaled = Scaled()
    with SIMULATION.held(scaled.update_stream):
        scaled.graph.replay()
        scaled.signal()
        scaled.update(5.0)
        torch.npu.current_stream().synchronize()
    assert scaled.result() == 1.0


def test_a_replay_without_an_update_does_what_was_captured() -> None:
    scaled = Scaled()
    scaled.signal()
    scaled.graph.replay()
    assert scaled.result() == 1.0


def test_an_update_of_other_operators_is_refused() -> None:
    scaled = Scaled()
    stream = scaled.update_stream
    torch.npu.graph_task_update_begin(stream, scaled.handle)
    with torch.npu.stream(stream):
        torch.add(scaled.x, 2.0, out=scaled.y)
    with pytest.raises(RuntimeError, match="captured with: aclnnMuls; the update has: aclnnAdds"):
        torch.npu.graph_task_update_end(stream)


def test_a_task_group_takes_operators_only() -> None:
    host, y = torch.ones(4).pin_memory(), torch.zeros(4, device=DEVICE)

    def group() -> torch.Tensor:
        stream = torch.npu.current_stream()
        torch.npu.graph_task_group_begin(stream)
        with pytest.raises(RuntimeError, match="in a task group: it takes operators only"):
            y.copy_(host, non_blocking=True)
        torch.npu.graph_task_group_end(stream)
        return y

    captured(group)


def test_a_task_group_that_is_not_ended_is_refused() -> None:
    with pytest.raises(RuntimeError, match="a task group was begun and not ended"):
        captured(lambda: torch.npu.graph_task_group_begin(torch.npu.current_stream()))


def test_a_task_group_is_part_of_a_capture() -> None:
    with pytest.raises(RuntimeError, match="a task group is part of a capture"):
        torch.npu.graph_task_group_begin(torch.npu.Stream())


def test_replays_allocate_nothing() -> None:
    x = torch.ones(4, device=DEVICE)
    graph, _ = captured(lambda: x * 2 + 1)
    before = SIMULATION.count("device_allocations"), SIMULATION.count("waits")
    for _ in range(3):
        graph.replay()
    assert (SIMULATION.count("device_allocations"), SIMULATION.count("waits")) == before
