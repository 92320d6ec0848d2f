"""Graphs between break points, over the simulated capture: order, memory, who owns what, and what goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from capture import SimulatedCapture, SimulatedFault, SimulatedGraph, SimulatedPool, SimulatedStream

from trunnion.interfaces.break_points import BreakKind, BreakPoints
from trunnion.runner.graph_break import Break, GraphBreaker, ReplayList

Forward = Callable[[BreakPoints], torch.Tensor]


class Scene:
    """A pool, break points and a breaker for the kinds that break."""

    def __init__(self, *kinds: BreakKind) -> None:
        self.pool = SimulatedPool(1 << 20)
        self.breaks = BreakPoints()
        self.capture = SimulatedCapture(self.pool, SimulatedStream())
        self.breaker = GraphBreaker(self.breaks, self.capture, kinds)

    def record(self, forward: Forward) -> tuple[ReplayList, torch.Tensor]:
        with torch.inference_mode():
            return self.breaker.record(lambda: forward(self.breaks))

    def replay(self, replays: ReplayList) -> None:
        self.pool.poison()
        with torch.inference_mode():
            replays.replay()


def double(x: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
    """A group's run: fills `out`."""
    return x * 2 if out is None else torch.mul(x, 2, out=out)


def test_pieces_stand_in_the_order_of_the_forward() -> None:
    """graph, break, graph, break: the last break's output is the result; no graph where there is nothing to do."""
    scene, x = Scene(BreakKind.GROUP), torch.ones(4)

    def forward(breaks: BreakPoints) -> torch.Tensor:
        y = breaks.call(BreakKind.GROUP, double, x + 1)
        return breaks.call(BreakKind.GROUP, double, breaks.call(BreakKind.GROUP, double, y + 1))

    replays, out = scene.record(forward)
    assert [type(piece) for piece in replays.pieces] == [SimulatedGraph, Break, SimulatedGraph, Break, Break]
    assert replays.num_breaks == 3
    for value in (1.0, 5.0):
        x.fill_(value)
        scene.replay(replays)
        assert out.tolist() == [((value + 1) * 2 + 1) * 4] * 4


def test_an_output_never_lies_on_its_arguments() -> None:
    """A break reads its arguments while it writes its output, even where the model has dropped everything else."""
    scene, x = Scene(BreakKind.GROUP), torch.arange(32.0)
    seen: list[tuple[int, int]] = []

    def group(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is not None:
            seen.extend((tensor.data_ptr(), out.data_ptr()) for tensor in (a, b))
        return torch.add(a, b, out=out)

    def forward(breaks: BreakPoints) -> torch.Tensor:
        y = x * 1
        for _ in range(5):
            y = breaks.call(BreakKind.GROUP, group, y + 1, y * 2)
        return y

    replays, out = scene.record(forward)
    scene.replay(replays)
    torch.testing.assert_close(out, forward(BreakPoints()))
    assert seen and all(argument != output for argument, output in seen)


def test_the_pool_does_not_grow_with_the_layers() -> None:
    """The replay list owns nothing: a layer's memory goes to the next one."""
    high_waters = []
    for layers in (2, 32):
        scene, x = Scene(BreakKind.GROUP), torch.ones(64)

        def forward(breaks: BreakPoints, layers: int = layers, x: torch.Tensor = x) -> torch.Tensor:
            hidden = x + 1
            for _ in range(layers):
                hidden = hidden + breaks.call(BreakKind.GROUP, double, torch.sin(hidden)) / 3
            return hidden

        replays, out = scene.record(forward)
        scene.replay(replays)
        torch.testing.assert_close(out, forward(BreakPoints()))
        high_waters.append(scene.pool.high_water)
    assert high_waters[0] == high_waters[1]


def test_a_collective_may_work_in_place_or_not() -> None:
    """What returns its argument needs no copy; what returns a new tensor is copied to where the graph reads."""
    scene, x = Scene(BreakKind.COLLECTIVE), torch.ones(2, 3)

    def forward(breaks: BreakPoints) -> torch.Tensor:
        summed = breaks.call(BreakKind.COLLECTIVE, lambda y: y.mul_(2), x + 1)
        return breaks.call(BreakKind.COLLECTIVE, lambda y, dim: torch.cat((y, y + 1), dim), summed, 1) * 1

    replays, out = scene.record(forward)
    x.fill_(4)
    scene.replay(replays)
    assert out.tolist() == [[10, 10, 10, 11, 11, 11]] * 2


def test_kinds_that_do_not_break_are_captured() -> None:
    """The package decides; the call is part of the graph, and runs no more."""
    scene, x, calls = Scene(BreakKind.COLLECTIVE), torch.ones(3), []

    def group(y: torch.Tensor) -> torch.Tensor:
        calls.append(y)
        return y + 1

    replays, out = scene.record(lambda breaks: breaks.call(BreakKind.GROUP, group, x) * 2)
    calls.clear()
    x.fill_(2)
    scene.replay(replays)
    assert out.tolist() == [6, 6, 6]
    assert replays.num_breaks == 0 and not calls


def test_a_group_that_ignores_out_is_an_error() -> None:
    """Silence would leave the next graph with what lay there before."""
    scene, x = Scene(BreakKind.GROUP), torch.ones(3)

    def careless(y: torch.Tensor, *, out: Any = None) -> torch.Tensor:
        return y + 1

    replays, _ = scene.record(lambda breaks: breaks.call(BreakKind.GROUP, careless, x * 1) + 1)
    with pytest.raises(RuntimeError, match="ignored `out`"):
        scene.replay(replays)


@pytest.mark.parametrize("where", ["segment", "break"])
def test_a_forward_that_fails_leaves_no_capture_behind(where: str) -> None:
    """Its own error is seen, and the next forward can be recorded."""
    scene, x = Scene(BreakKind.GROUP), torch.ones(3)

    def broken(y: torch.Tensor) -> torch.Tensor:
        raise KeyError(str(float(y.sum())))

    def forward(breaks: BreakPoints) -> torch.Tensor:
        return breaks.call(BreakKind.GROUP, broken, x + 1) if where == "break" else torch.as_tensor((x + 1).tolist())

    with pytest.raises(KeyError if where == "break" else SimulatedFault):
        scene.record(forward)
    assert torch.ones(2).tolist() == [1, 1], "nothing is refused outside a capture"
    replays, out = scene.record(lambda breaks: breaks.call(BreakKind.GROUP, double, x + 1) + 1)
    scene.replay(replays)
    assert out.tolist() == [5, 5, 5]
