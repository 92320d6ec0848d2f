"""Piecewise graphs without a compiler: records a forward as graphs and the calls between them, and replays both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map_only

from trunnion.interfaces.break_points import BreakKind, BreakPoints


class Segment(Protocol):
    """A captured piece of a forward."""

    def replay(self) -> None:
        """Run the piece again, at the addresses it was captured with."""
        ...


class SegmentCapture(Protocol):
    """What a hardware package lends: its way to capture, and its memory for what is made in a capture.

    All captures of one executor share one memory pool, in which what is dead is used again.
    """

    def begin(self) -> None:
        """Start capturing; from here on tensors are made in the pool."""
        ...

    def end(self) -> Segment | None:
        """Stop, and return what was captured; None if that is nothing."""
        ...

    def non_owning(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements at the same address, without a share in the life of the memory."""
        ...


class Break:
    """A call between two segments: it reads tensors of the one before and fills a tensor that the one after reads."""

    def __init__(
        self, call: Callable[..., torch.Tensor], args: tuple[Any, ...], out: torch.Tensor, *, takes_out: bool
    ) -> None:
        self._call = call
        self._args = args
        self._kwargs = {"out": out} if takes_out else {}
        self._out = out
        self._address = out.data_ptr()

    def replay(self) -> None:
        """Call again, into the same output.

        Raises:
            RuntimeError: the call was given `out` and returned something else.
        """
        result = self._call(*self._args, **self._kwargs)
        if result.data_ptr() == self._address:
            return
        if self._kwargs:
            raise RuntimeError(f"{self._call} ignored `out`: the next graph would read what is not there")
        self._out.copy_(result)


class ReplayList:
    """`graph, break, graph, ...`: replays a forward without any of its Python but the calls at its breaks."""

    def __init__(self) -> None:
        self.pieces: list[Segment | Break] = []

    @property
    def num_breaks(self) -> int:
        return sum(isinstance(piece, Break) for piece in self.pieces)

    def replay(self) -> None:
        for piece in self.pieces:
            piece.replay()


class GraphBreaker:
    """The recorder that sits at the break points of one executor while a forward is captured.

    Calls of the kinds in `kinds` end the capture; all others stand inside it. Group calls take their output as `out=`,
    others are copied from unless they return one of their arguments. What the replay list holds are views that own
    nothing: a tensor dies when the model drops it, and the next layer gets its memory.

    While a forward is recorded, each break's call runs once outside the capture, to learn the shape of its result, on
    whatever the pool holds: groups must have been planned for a step without requests, and all ranks record alike.
    """

    def __init__(self, breaks: BreakPoints, capture: SegmentCapture, kinds: Collection[BreakKind]) -> None:
        self._breaks = breaks
        self._capture = capture
        self._kinds = frozenset(kinds)
        self._list = ReplayList()
        self._capturing = False

    def record(self, forward: Callable[[], torch.Tensor]) -> tuple[ReplayList, torch.Tensor]:
        """Capture `forward()` -> what replays it, and its result, which each replay fills again.

        The result lies in the pool and lives until the next replay of anything in the same pool.
        """
        self._list = ReplayList()
        self._breaks.attach(self)
        try:
            self._begin()
            result = forward()
            self._end()
        except BaseException as error:
            self._abandon(error)
            raise
        finally:
            self._breaks.detach()
        return self._list, self._capture.non_owning(result)

    def on_break(self, kind: BreakKind, call: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> torch.Tensor:
        """See `Recorder.on_break`."""
        if kind not in self._kinds:
            return call(*args)
        self._end()
        result = call(*args)
        self._begin()
        output = _returned_argument(result, args)
        if output is None:
            # Made in the pool while the arguments are alive, so that it cannot lie where they lie.
            output = torch.empty_like(result, memory_format=torch.contiguous_format)
        views = tree_map_only(torch.Tensor, self._capture.non_owning, args)
        out = self._capture.non_owning(output)
        self._list.pieces.append(Break(call, views, out, takes_out=kind is BreakKind.GROUP))
        return output

    def _begin(self) -> None:
        self._capture.begin()
        self._capturing = True

    def _end(self) -> None:
        self._capturing = False
        segment = self._capture.end()
        if segment is not None:
            self._list.pieces.append(segment)

    def _abandon(self, error: BaseException) -> None:
        """Leave the capture after `error`, which is what the caller must see."""
        if self._capturing:
            self._capturing = False
            try:
                self._capture.end()
            except Exception as second:
                error.add_note(f"ending the capture failed as well: {second}")


def _returned_argument(result: torch.Tensor, args: tuple[Any, ...]) -> torch.Tensor | None:
    """The argument that a call worked on in place and returned, if it did."""
    for arg in args:
        if isinstance(arg, torch.Tensor) and arg.data_ptr() == result.data_ptr() and arg.shape == result.shape:
            return arg
    return None
