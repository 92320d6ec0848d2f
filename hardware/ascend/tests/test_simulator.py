"""The simulated NPU itself: memory, streams and events, and that it refuses what a device would."""

from __future__ import annotations

import ctypes
from contextlib import nullcontext

import pytest
import torch
from hardware.ascend.tests.simulated import SIMULATION

DEVICE = torch.device("npu", 0)


def test_the_real_torch_npu_names_the_device() -> None:
    assert torch.npu.is_available()
    assert torch.npu.device_count() == 1
    assert torch.npu.get_device_name() == "Ascend910B3"


def test_operators_give_what_the_host_gives() -> None:
    x = torch.randn(5, 8)
    moved = x.to(DEVICE)
    assert moved.device == DEVICE
    torch.testing.assert_close(torch.softmax(moved.t() @ moved, -1).cpu(), torch.softmax(x.t() @ x, -1))
    moved[1:3].zero_()
    assert moved.cpu()[1:3].abs().sum() == 0
    assert (moved.cpu()[3:] == x[3:]).all()


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device=DEVICE) + torch.ones(2)


def test_fresh_memory_is_poison() -> None:
    # Larger than what torch_npu's allocator has at hand.
    torch.npu.empty_cache()
    assert torch.empty(16 << 20, device=DEVICE)[-7:].isnan().all()


def test_an_operator_without_a_rule_fails_by_its_name() -> None:
    with pytest.raises(RuntimeError, match=r"operator Erfinv of the graph engine is not modelled"):
        torch.erfinv(torch.ones(2, device=DEVICE))


def test_a_rule_that_fails_says_why() -> None:
    weight, places = torch.zeros(4, 2, device=DEVICE), torch.tensor([9], device=DEVICE)
    with pytest.raises(RuntimeError, match=r"aclnnEmbedding: a place is outside of \[0, 4\)"):
        torch.nn.functional.embedding(places, weight)


def test_results_whose_shape_depends_on_values() -> None:
    x = torch.tensor([[0, 3], [5, 0]], device=DEVICE)
    assert torch.nonzero(x).tolist() == [[0, 1], [1, 0]]
    assert x[x > 0].tolist() == [3, 5]


def test_late_work_runs_when_somebody_waits() -> None:
    x = torch.zeros(4, device=DEVICE)
    ran = SIMULATION.calls["aclnnAdds"]
    with SIMULATION.late():
        x.add_(1)
        assert SIMULATION.calls["aclnnAdds"] + SIMULATION.calls["aclnnInplaceAdds"] >= ran
        event = torch.npu.Event()
        event.record()
        assert not event.query()
        event.synchronize()
        assert event.query()
    assert x.tolist() == [1, 1, 1, 1]


def test_a_late_copy_reads_what_lies_there_then() -> None:
    host = torch.zeros(4).pin_memory()
    target = torch.empty(4, device=DEVICE)
    with SIMULATION.late():
        target.copy_(host, non_blocking=True)
        host.fill_(7)
    assert target.tolist() == [7, 7, 7, 7]


def test_a_stream_that_waits_for_no_event_overtakes() -> None:
    """The held stream fills a tensor; another one reads it, with and without an event between them."""
    held, other = torch.npu.Stream(), torch.npu.Stream()
    for has_event in (False, True):
        x = torch.zeros(4, device=DEVICE)
        result = torch.zeros(4, device=DEVICE)
        torch.npu.synchronize()
        with SIMULATION.held(held):
            with torch.npu.stream(held):
                x.fill_(3)
                event = torch.npu.Event()
                event.record()
            with torch.npu.stream(other):
                if has_event:
                    event.wait()
                result.copy_(x)
            other.synchronize()
        torch.npu.synchronize()
        assert result.tolist() == ([3.0] * 4 if has_event else [0.0] * 4)


def test_waiting_for_what_never_comes_is_an_error() -> None:
    event = torch.npu.ExternalEvent()
    stream = torch.npu.Stream()
    graph = torch.npu.NPUGraph()
    x = torch.zeros(4, device=DEVICE)
    with torch.npu.graph(graph, stream=stream):
        event.wait(stream)
        event.reset(stream)
        x.add_(1)
    graph.replay()
    with pytest.raises(RuntimeError, match="work waits for an external event, which no stream is about to give"):
        torch.npu.synchronize()
    event.record(torch.npu.Stream())
    torch.npu.synchronize()
    assert x.tolist() == [1, 1, 1, 1]


def test_memory_that_was_given_back_is_no_device_memory() -> None:
    # Larger than any room that earlier tests left in a segment of torch_npu's allocator that something else keeps.
    x = torch.ones(128 << 20, dtype=torch.int8, device=DEVICE)
    graph = torch.npu.NPUGraph()
    result = torch.empty_like(x)
    with torch.npu.graph(graph):
        torch.add(x, 1, out=result)
    graph.replay()
    assert result[0].item() == 2
    del x
    torch.npu.synchronize()
    torch.npu.empty_cache()
    with pytest.raises(RuntimeError, match="not device memory"):
        graph.replay()


@pytest.mark.parametrize("late", [False, True])
def test_a_host_function_stands_between_what_was_asked_before_and_after(late: bool) -> None:
    """It may look at the device's memory itself, while its stream stands still."""
    x, seen = torch.ones(2, device=DEVICE), []
    launch = ctypes.CDLL("libascendcl.so").aclrtLaunchHostFunc
    launch.argtypes = (ctypes.c_void_p,) * 3

    def look(_: int) -> None:
        seen.append(x.clone())
        x.add_(10)

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(look)
    with SIMULATION.late() if late else nullcontext():
        x.mul_(3)
        assert launch(torch.npu.current_stream().npu_stream, function, None) == 0
        x.mul_(2)
        assert len(seen) == (0 if late else 1)
        assert x.tolist() == [26, 26]
    assert seen[0].tolist() == [3, 3]


def test_waits_are_counted_and_questions_are_not() -> None:
    event = torch.npu.Event()
    with SIMULATION.late():
        torch.ones(2, device=DEVICE)
        event.record()
        before = SIMULATION.count("waits")
        assert not event.query()
        assert SIMULATION.count("waits") == before
        event.synchronize()
        assert SIMULATION.count("waits") == before + 1
        assert event.query()
