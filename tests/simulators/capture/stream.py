"""The simulated stream: work in the order it was launched, at once or, for tests of overlap, late."""

from __future__ import annotations

from collections.abc import Callable

Work = Callable[[], None]


class SimulatedStream:
    """With `late`, work waits until something waits for it; without, it runs when it is launched."""

    def __init__(self, *, late: bool = False) -> None:
        self.late = late
        self._queue: list[Work] = []
        self._launched = 0
        self._done = 0

    def launch(self, work: Work) -> None:
        """Run `work` after everything launched before."""
        self._launched += 1
        if not self.late:
            self._done += 1
            work()
            return
        self._queue.append(work)

    def record(self) -> SimulatedFence:
        """A fence behind everything launched so far."""
        return SimulatedFence(self, self._launched)

    def wait(self, mark: int) -> None:
        """Run the first `mark` pieces of work that were ever launched."""
        while self._done < mark:
            self._done += 1
            self._queue.pop(0)()


class SimulatedFence:
    """A mark in a stream."""

    def __init__(self, stream: SimulatedStream, mark: int) -> None:
        self._stream = stream
        self._mark = mark

    def wait(self) -> None:
        """Run everything before the mark."""
        self._stream.wait(self._mark)
