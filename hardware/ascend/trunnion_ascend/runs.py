"""The requests of a step as the fused operator is told of them: runs of queries, and how many keys each run sees.

Queries are given by their ends, which are sums; keys by their number, run by run. Both are lists of the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trunnion.interfaces.attention import StepInputs
from trunnion_ascend.capabilities import MAX_RUNS, OPERATOR


@dataclass(frozen=True, slots=True)
class Runs:
    """Neighbouring rows of one request, whose last query sees all keys of the run and each one before it one less."""

    query_ends: list[int]
    """First row after each run; runs follow each other without gaps, and the last end is the number of rows."""
    num_keys: list[int]
    """Keys of each run, counted from the start of its request's block table."""
    requests: np.ndarray
    """[n] int32: whose block table a run has."""

    @property
    def num_rows(self) -> int:
        return self.query_ends[-1] if self.query_ends else 0

    @property
    def is_one_each(self) -> bool:
        """Whether run i is request i."""
        return bool((self.requests == np.arange(len(self.requests))).all())


def runs_of(
    step: StepInputs,
    cache_index: int,
    *,
    padded_reqs: int | None = None,
    query_len: int | None = None,
    max_rows: int | None = None,
) -> Runs:
    """The runs of a step.

    A request whose last rows have no slot is two runs: rows that have one, which see the keys that are written, and
    the others, which see none. With `query_len` the step is a full graph of `padded_reqs` requests: then every request
    of more than one token is two runs, so that a bucket always has as many. With `max_rows` longer runs are cut.

    Raises:
        ValueError: more runs than the operator takes.
    """
    counts, host, group = step.counts, step.host, step.host.groups[cache_index]
    assert counts.lens_are_exact, "the fused operator needs exact host lengths"
    assert group.slot_mapping is not None and group.kv_start is not None, "attention groups have slots and a start"
    count = counts.num_reqs
    starts = host.query_start_loc[: count + 1].numpy()
    rows = starts[1:] - starts[:-1]
    without_slot = group.slot_mapping[: counts.num_tokens].numpy() < 0
    missing = np.diff(np.concatenate(([0], np.cumsum(without_slot)))[starts])
    keys = host.seq_lens[:count].numpy() - group.kv_start[:count].numpy() - missing
    if query_len is not None:
        assert padded_reqs is not None, "a graph has a number of requests"
        absent = np.full(padded_reqs - count, query_len, dtype=rows.dtype)
        rows, missing = np.concatenate((rows, absent)), np.concatenate((missing, absent))
        keys = np.concatenate((keys, np.zeros_like(absent)))
    requests = np.arange(len(rows), dtype=np.int32)
    if query_len == 1:
        # A row without a slot has no keys, so that it needs no run of its own.
        keys = np.where(missing > 0, 0, keys)
    elif query_len is not None or missing.any():
        requests = np.repeat(requests, 2)
        keys = np.stack((keys, np.zeros_like(keys)), 1).ravel()
        rows = np.stack((rows - missing, missing), 1).ravel()
    if max_rows is not None and rows.max(initial=0) > max_rows:
        rows, keys, requests = _cut(rows, keys, requests, max_rows)
    if len(rows) > MAX_RUNS:
        raise ValueError(f"{len(rows)} runs of queries are more than the {MAX_RUNS} of {OPERATOR}: lower max_num_seqs")
    if len(rows) and not keys.any():
        # Nobody reads what such a step returns, but without any key the operator refuses it.
        keys[0] = 1
    return Runs(np.cumsum(rows).tolist(), keys.tolist(), requests)


def _cut(
    rows: np.ndarray, keys: np.ndarray, requests: np.ndarray, most: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs of at most so many rows: what comes later in a run sees more of its keys."""
    parts = np.maximum(-(-rows // most), 1)
    whose = np.repeat(np.arange(len(rows)), parts)
    place = np.arange(len(whose)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = place * most
    size = np.minimum(rows[whose] - first, most)
    seen = keys[whose] - (rows[whose] - first - size)
    return size, np.where(keys[whose] > 0, seen, 0), requests[whose]
