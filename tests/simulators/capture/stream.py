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

    def record(self) -> int:
        """A mark behind everything launched so far."""
        return self._launched

    def is_done(self, mark: int) -> bool:
        return self._done >= mark

    def wait(self, mark: int) -> None:
        """Run everything before `mark`."""
        while self._done < mark:
            self._done += 1
            self._queue.pop(0)()
