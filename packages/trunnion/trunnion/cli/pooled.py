"""Requests that end with a vector: run together, handed on in the order in which they were asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trunnion.cli.answers import Interrupt
from trunnion.cli.host import Finished, Host
from trunnion.cli.messages import EXIT_INTERRUPTED, EXIT_UNEXPECTED, UsageProblem, note

MAX_TOGETHER = 32
"""Requests per step unless --max-num-seqs says otherwise."""
_POLL_SECONDS = 0.1


def run_pooled(
    host: Host,
    ids: Sequence[Sequence[int]],
    interrupt: Interrupt,
    hand_on: Callable[[int, Finished], None],
    types: Sequence[Sequence[int] | None] | None = None,
) -> list[Finished]:
    """Until every request has ended; `hand_on` gets each that has a vector once those before it have been.

    `types` are those of each request's tokens, None = all 0.
    """
    indices: dict[int, int] = {}
    ends: list[Finished | None] = [None] * len(ids)
    done, cancelled = 0, False
    try:
        for index, token_ids in enumerate(ids):
            indices[_submit(host, token_ids, None if types is None else types[index])] = index
        while done < len(ids):
            if interrupt.seen and not cancelled:
                _cancel(host, indices, ends)
                cancelled = True
            event = host.next_event(_POLL_SECONDS)
            if event is None or event.finished is None or event.request_id not in indices:
                continue
            ends[indices[event.request_id]] = event.finished
            while done < len(ids) and (end := ends[done]) is not None:
                if end.embedding is not None:
                    hand_on(done, end)
                done += 1
    except BaseException:
        _cancel(host, indices, ends)
        raise
    return [end for end in ends if end is not None]


def exit_code(ends: Sequence[Finished], interrupt: Interrupt) -> int:
    """Of a command whose requests have ended; errors are printed."""
    failed = [end.error for end in ends if end.reason == "error"]
    for error in failed:
        note(f"trunnion: {error}")
    return EXIT_INTERRUPTED if interrupt.seen else EXIT_UNEXPECTED if failed else 0


def check_length(token_ids: Sequence[int], longest: int, what: str) -> None:
    """UsageProblem: there are no tokens, or too many."""
    if not token_ids:
        raise UsageProblem(f"{what} is empty")
    if len(token_ids) > longest:
        raise UsageProblem(f"{what} has {len(token_ids)} tokens; --max-model-len is {longest}")


def _submit(host: Host, token_ids: Sequence[int], types: Sequence[int] | None) -> int:
    try:
        return host.submit_embedding(token_ids, types)
    except ValueError as error:
        raise UsageProblem(str(error)) from error


def _cancel(host: Host, indices: dict[int, int], ends: Sequence[Finished | None]) -> None:
    for request_id, index in indices.items():
        if ends[index] is None:
            host.cancel(request_id)
