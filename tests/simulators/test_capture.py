"""The capture simulator by itself: what it records, where its memory lies, what it refuses and counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from capture import DelayedTransfers, DeviceMonitor, SimulatedCapture, SimulatedFault, SimulatedPool, SimulatedStream
from capture.graph import SimulatedGraph


def capture_of(
    forward: Callable[[], torch.Tensor], pool: SimulatedPool | None = None, stream: SimulatedStream | None = None
) -> tuple[SimulatedGraph, torch.Tensor]:
    """A graph of `forward`, and its output by address."""
    capture = SimulatedCapture(pool or SimulatedPool(1 << 20), stream or SimulatedStream())
    with torch.inference_mode():
        capture.begin()
        try:
            result = forward()
        finally:
            graph = capture.end()
        assert graph is not None
        return graph, capture.non_owning(result)


def test_a_replay_reads_what_lies_at_its_addresses() -> None:
    """Inputs as they are now, host values as they were, the output where it was."""
    x, factor = torch.ones(3, 4), [3.0]
    graph, out = capture_of(lambda: (x @ x.T).softmax(-1) * factor[0])
    address = out.data_ptr()
    for seed in range(3):
        x.copy_(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)))
        factor[0] = 100.0
        graph.replay()
        torch.testing.assert_close(out, (x @ x.T).softmax(-1) * 3.0)
    assert out.data_ptr() == address
    assert graph.replays == 3


def test_what_is_dead_makes_room() -> None:
    """A chain needs the memory of two links, however long it is; what all links read stays."""
    needed = []
    for length in (3, 300):
        pool = SimulatedPool(1 << 20)

        def chain(steps: int = length) -> torch.Tensor:
            first = torch.ones(100)
            last = first
            for _ in range(steps):
                last = torch.sin(last) + first
            return last

        graph, out = capture_of(chain, pool)
        pool.poison()
        graph.replay()
        torch.testing.assert_close(out, chain())
        needed.append(pool.high_water)
    assert needed[0] == needed[1]


def test_new_memory_holds_nothing() -> None:
    """A buffer that is read before it is written gives NaN."""
    _, out = capture_of(lambda: torch.empty(5) + 1)
    assert out.isnan().all()


def test_values_of_the_capture_are_gone() -> None:
    """A graph cannot live on what its capture has left in the pool."""
    pool = SimulatedPool(1 << 20)
    x = torch.ones(4)
    _, first = capture_of(lambda: x + 1, pool)
    second, out = capture_of(lambda: first * 2, pool)
    pool.poison()
    second.replay()
    assert out.isnan().all()


def test_a_graph_does_not_keep_its_inputs_alive() -> None:
    """Replaying without them is an error that names them, not a read of freed memory."""
    inputs = [torch.ones(7, 3)]
    graph, _ = capture_of(lambda: inputs[0] + 1)
    graph.replay()
    inputs.clear()
    with pytest.raises(SimulatedFault, match=r"outlives .*float32 \(7, 3\)"):
        graph.replay()


REFUSED: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "item": (lambda x: x.sum().item(), "_local_scalar_dense"),
    "tolist": (lambda x: x.tolist(), "tolist"),
    "numpy": (lambda x: x.numpy(), "numpy"),
    "cpu": (lambda x: x.cpu(), "cpu"),
    "to-cpu": (lambda x: x.to("cpu"), "to"),
    "if": (lambda x: 1 if x.sum() else 0, "_local_scalar_dense"),
    "equal": (lambda x: torch.equal(x, x + 1), "equal"),
    "nonzero": (lambda x: x.nonzero(), "nonzero"),
    "where": (lambda x: torch.where(x > 0), "nonzero"),
    "mask": (lambda x: x[x > 0], "index"),
    "unique": (lambda x: x.unique(), "unique"),
    "repeats": (lambda x: x[:, 0].repeat_interleave(x[:, 1].long()), "repeat_interleave"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_waits_are_refused_by_name(name: str) -> None:
    """Whatever reads a value, or makes a shape of one."""
    x = torch.ones(4, 4)
    call, words = REFUSED[name]
    with pytest.raises(SimulatedFault, match=words):
        capture_of(lambda: torch.as_tensor(call(x + 1)))


def test_reshapes_that_copy_are_replayed() -> None:
    """Only what shares memory is a view, whatever an operator's name promises."""
    x = torch.arange(12.0).view(3, 4)
    graph, out = capture_of(lambda: x.T.reshape(-1).to(torch.float64).contiguous())
    x.mul_(2)
    graph.replay()
    torch.testing.assert_close(out, x.T.reshape(-1).double())


def test_the_monitor_sees_allocations_and_waits() -> None:
    """Views, writes in place and reads of host memory cost nothing; everything else is counted by who asked."""
    x, host = torch.ones(8), torch.ones(8)
    with DeviceMonitor(host=[host]) as monitor:
        x.view(2, 4).mul_(2)
        x[:4].copy_(host[:4])
        host.tolist()
    assert not monitor.allocations and not monitor.waits
    with DeviceMonitor(host=[host]) as monitor:
        (x + 1).tolist()
        x.sum().item()
    assert sum(monitor.allocations.values()) == 2
    assert sum(monitor.waits.values()) == 2
    assert all(__name__ in asked for asked in (*monitor.allocations, *monitor.waits))


def test_a_late_stream_runs_in_order_when_somebody_waits() -> None:
    """Transfers and graphs keep their order; a host that refills too early sends the wrong rows."""
    stream = SimulatedStream(late=True)
    device, staging, output = torch.zeros(2), torch.zeros(2), torch.zeros(2)
    graph, out = capture_of(lambda: device * 10, stream=stream)
    with DelayedTransfers(stream, host=[staging, output]):
        for value in (1.0, 2.0):
            staging.fill_(value)
            device.copy_(staging)
            graph.replay()
            output.copy_(out)
            fence = stream.record()
            if value == 1.0:
                assert output.tolist() == [0, 0]
                fence.wait()
                assert output.tolist() == [10, 10]
        staging.fill_(7.0)
        fence.wait()
    assert output.tolist() == [70, 70]
