"""Run requests through the host and turn their events into text, as it comes or when it is complete."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from trunnion.cli.host import Event, Finished, Host
from trunnion.text.detokenizer import Detokenizer
from trunnion.text.stop_strings import StopStrings

_POLL_SECONDS = 0.1


@dataclass
class Answer:
    """One request's output. `text` is what may be shown: no special tokens, no stop string, no half character."""

    request_id: int
    detokenizer: Detokenizer
    stops: StopStrings
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finished: Finished | None = None

    def take(self, event: Event) -> str:
        """Text that this event adds."""
        if event.finished is not None:
            self.finished = event.finished
            rest = self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        elif self.stops.matched is None and event.token_id is not None:
            self.token_ids.append(event.token_id)
            rest = self.stops.push(self.detokenizer.push(event.token_id))
        else:
            # Sent before the host heard that a stop string had ended the answer.
            rest = ""
        self.text += rest
        return rest

    @property
    def finish_reason(self) -> str:
        """stop (an end token or a stop string), length, cancelled or error."""
        if self.stops.matched is not None:
            return "stop"
        return self.finished.reason if self.finished is not None else "cancelled"


class Interrupt:
    """Ctrl-C as a flag. A second Ctrl-C raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.seen = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True


@contextmanager
def catch_interrupt() -> Iterator[Interrupt]:
    """Inside, Ctrl-C sets the flag: whoever waits for events looks at it between two waits."""
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def default_interrupt() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once: for calls into C++ that do not come back for long."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def follow(host: Host, answers: Sequence[Answer], interrupt: Interrupt, show: Callable[[int, str], None]) -> None:
    """Until all answers have finished: `show(index, text)` for what each adds, and ("", once) at its end.

    On Ctrl-C all are cancelled; what they had held back is still shown.
    """
    index_of = {answer.request_id: index for index, answer in enumerate(answers)}
    cancelled: set[int] = set()
    try:
        while any(answer.finished is None for answer in answers):
            if interrupt.seen:
                _cancel(host, [answer for answer in answers if answer.finished is None], cancelled)
            event = host.next_event(_POLL_SECONDS)
            if event is None or event.request_id not in index_of:
                continue
            index = index_of[event.request_id]
            answer = answers[index]
            text = answer.take(event)
            if text or answer.finished is not None:
                show(index, text)
            if answer.stops.matched is not None and answer.finished is None:
                _cancel(host, [answer], cancelled)
    except BaseException:
        _cancel(host, [answer for answer in answers if answer.finished is None], cancelled)
        raise


def _cancel(host: Host, answers: Sequence[Answer], cancelled: set[int]) -> None:
    for answer in answers:
        if answer.request_id not in cancelled:
            cancelled.add(answer.request_id)
            host.cancel(answer.request_id)
