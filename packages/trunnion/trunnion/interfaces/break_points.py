"""Where a captured forward may have to stop: calls of groups, collectives and expert blocks go through here."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import torch

from trunnion.interfaces.collectives import Collectives


class BreakKind(Enum):
    """What is called at a break point; a recorder decides per kind whether it can stand inside its graph."""

    GROUP = "group"
    COLLECTIVE = "collective"


class Recorder(Protocol):
    """A runner that is capturing."""

    def on_break(self, kind: BreakKind, call: Callable[..., torch.Tensor], args: tuple[Any, ...]) -> torch.Tensor:
        """End the capture, run or note `call(*args)`, go on capturing; return the call's result."""
        ...


class BreakPoints:
    """One per executor, shared by its layers, collectives and runner. Outside a capture it only passes calls on."""

    def __init__(self) -> None:
        self._recorder: Recorder | None = None

    def call(self, kind: BreakKind, call: Callable[..., torch.Tensor], *args: Any) -> torch.Tensor:
        """`call(*args)`, by way of the recorder if one is attached."""
        if self._recorder is None:
            return call(*args)
        return self._recorder.on_break(kind, call, args)

    def attach(self, recorder: Recorder) -> None:
        """Start a capture. AssertionError if one is under way."""
        assert self._recorder is None, "a capture is under way"
        self._recorder = recorder

    def detach(self) -> None:
        """End it."""
        self._recorder = None


class BreakableCollectives(Collectives):
    """Collectives whose calls are break points."""

    def __init__(self, collectives: Collectives, breaks: BreakPoints) -> None:
        self._collectives = collectives
        self._breaks = breaks

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._breaks.call(BreakKind.COLLECTIVE, self._collectives.all_reduce, x)

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return self._breaks.call(BreakKind.COLLECTIVE, self._collectives.all_gather, x, dim)

    def join(self) -> None:
        self._collectives.join()

    def close(self) -> None:
        self._collectives.close()
