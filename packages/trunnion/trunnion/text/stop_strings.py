"""Find stop strings in streamed text, across the borders of its pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds back what may become a stop string, and lets the rest through.

    Text pushed after a match is dropped. Of several stop strings the one that begins first counts, of those the longest
    one known when the first of them is complete.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if any(not stop for stop in stops):
            raise ValueError("a stop string must not be empty")
        self.stops = tuple(stops)
        self.matched: str | None = None
        self._held = ""

    def push(self, text: str) -> str:
        """Text that can be shown now. After a match: what stands before the stop string, then nothing more."""
        if self.matched is not None:
            return ""
        self._held += text
        found = [(self._held.find(stop), -len(stop), stop) for stop in self.stops if stop in self._held]
        if found:
            start, _, self.matched = min(found)
            shown, self._held = self._held[:start], ""
            return shown
        keep = self._possible_start()
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def flush(self) -> str:
        """What is still held back, at the end of the output."""
        shown, self._held = self._held, ""
        return shown

    def _possible_start(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = 0
        for stop in self.stops:
            for size in range(min(len(stop) - 1, len(self._held)), longest, -1):
                if self._held.endswith(stop[:size]):
                    longest = size
                    break
        return longest
