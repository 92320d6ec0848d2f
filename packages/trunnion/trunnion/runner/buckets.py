"""The sizes a graph is captured for, and which of them a step takes: a pure function of the step's counts."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from trunnion.contract import BatchCounts, Limits
from trunnion.interfaces.runner import Bucket, Mode

DOUBLINGS = 4
"""Sizes of a ladder between one double step and the next."""


def ladder(limit: int, *, fine: int = 8, doublings: int = DOUBLINGS) -> tuple[int, ...]:
    """Sizes from 1 to `limit`: 1, 2, 4, then steps that double every `doublings` sizes; `limit` is always the last.

    >>> ladder(12), ladder(100)
    ((1, 2, 4, 8, 12), (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 100))
    """
    if limit < 1:
        raise ValueError(f"a ladder needs a limit of at least 1, got {limit}")
    sizes = [size for size in (1, 2, 4) if size < limit]
    size, step = fine, fine
    while size < limit:
        sizes.append(size)
        if size >= step * doublings:
            step *= 2
        size += step
    return (*sizes, limit)


class Buckets:
    """The buckets of one executor. They cover its limits: a step within the limits always finds one.

    Args:
        limits: the largest step.
        decode_query_lens: tokens per request of the uniform steps that get full graphs; None: 1, and what the limits
            allow for the verification of drafts. Empty: no full graphs.
        doublings: as `ladder` takes it, for a device that cannot hold graphs of as many sizes as it has otherwise.
    """

    def __init__(
        self, limits: Limits, decode_query_lens: Sequence[int] | None = None, *, doublings: int = DOUBLINGS
    ) -> None:
        self.limits = limits
        self.tokens = ladder(limits.max_num_tokens, doublings=doublings)
        self.logits = ladder(limits.max_logits_rows, doublings=doublings)
        lengths = (1, limits.max_decode_query_len) if decode_query_lens is None else decode_query_lens
        self.decodes = {
            length: ladder(min(limits.max_num_seqs, limits.max_num_tokens // length), doublings=doublings)
            for length in lengths
            if length <= limits.max_num_tokens
        }

    def select(self, counts: BatchCounts) -> Bucket:
        """The smallest bucket that holds the step. Pure: ranks that see the same counts choose alike."""
        length = counts.decode_query_len
        uniform = 0 < counts.num_reqs == counts.num_decodes and counts.num_tokens == counts.num_reqs * length
        if counts.has_kv_events:
            # A graph that holds the layers cannot wait for the host between them.
            uniform = False
        if counts.num_prefixes:
            # What a group launches for shared blocks depends on which requests share how many.
            uniform = False
        if uniform and length in self.decodes and counts.num_reqs <= self.decodes[length][-1]:
            return self.full(_round_up(self.decodes[length], counts.num_reqs), length)
        return Bucket(
            mode=Mode.PIECEWISE,
            num_tokens=_round_up(self.tokens, counts.num_tokens),
            num_reqs=counts.num_reqs,
            num_logits=_round_up(self.logits, counts.num_logits),
        )

    def full(self, num_reqs: int, query_len: int) -> Bucket:
        """The bucket of a full graph: logits of every row it may be asked for."""
        num_tokens = num_reqs * query_len
        return Bucket(
            mode=Mode.FULL,
            num_tokens=num_tokens,
            num_reqs=num_reqs,
            num_logits=min(num_tokens, self.limits.max_logits_rows),
        )

    def all_full(self) -> list[tuple[Bucket, int]]:
        """Every full bucket with its `decode_query_len`, largest first: the order of capture."""
        found = [(self.full(count, length), length) for length, sizes in self.decodes.items() for count in sizes]
        return sorted(found, key=lambda item: -item[0].num_tokens)


def _round_up(sizes: Sequence[int], count: int) -> int:
    """The first size that holds `count`; 0 stays 0."""
    if count == 0:
        return 0
    index = bisect.bisect_left(sizes, count)
    assert index < len(sizes), f"{count} is beyond the limit {sizes[-1]}"
    return sizes[index]
