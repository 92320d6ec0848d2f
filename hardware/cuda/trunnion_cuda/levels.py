"""The two levels of a step whose requests share cached pages: ranges of requests over those, requests over the rest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trunnion.interfaces.attention import StepInputs
from trunnion_cuda.segments import Segments, running_sum, segments_of


@dataclass(frozen=True, slots=True)
class Levels:
    """What each level's kernel is told; a row's attention is that of both, merged by their log-sum-exps."""

    shared: Segments
    """One run for each range between the first and the last that share pages; a range without has no keys."""
    rows: slice
    """Rows of the step that the runs of `shared` are."""
    own: Segments
    """The runs of all requests, without the pages that they share."""


def levels_of(step: StepInputs, cache_index: int, *, block_size: int) -> Levels | None:
    """The levels of a step outside of full graphs, or None if none of its requests share pages."""
    counts, host = step.counts, step.host
    if not counts.num_prefixes:
        return None
    assert host.prefix_indptr is not None and host.prefix_lens is not None
    bounds = host.prefix_indptr[: counts.num_prefixes + 1].numpy()
    pages = host.prefix_lens[: counts.num_prefixes].numpy() // block_size
    sharing = np.flatnonzero(pages)
    if not len(sharing):
        return None
    group = host.groups[cache_index]
    assert group.kv_indices is not None and group.kv_indptr is not None
    indices = group.kv_indices.numpy()
    every_run = segments_of(step, cache_index, block_size=block_size)
    own = _without_first(every_run, indices, np.repeat(pages, np.diff(bounds)))
    first, last = int(sharing[0]), int(sharing[-1]) + 1
    bounds, pages = bounds[first : last + 1], pages[first:last]
    begins = group.kv_indptr.numpy()[bounds[:-1]]
    starts = host.query_start_loc.numpy()[bounds]
    shared = Segments(
        qo_indptr=starts - starts[0],
        kv_indptr=running_sum(pages),
        kv_indices=indices[np.repeat(begins, pages) + _count_up(pages)],
        last_page_len=np.where(pages > 0, block_size, 0).astype(np.int32),
    )
    return Levels(shared, slice(int(starts[0]), int(starts[-1])), own)


def _without_first(found: Segments, indices: np.ndarray, pages: np.ndarray) -> Segments:
    """The same runs without the first `pages` [B] of each request, whose first run holds all that it sees."""
    runs_of_request = len(found.last_page_len) // len(pages)
    skipped = np.zeros(len(found.last_page_len), dtype=np.int32)
    skipped[::runs_of_request] = pages
    kept = np.diff(found.kv_indptr) - skipped
    source = indices if found.kv_indices is None else found.kv_indices
    return Segments(
        qo_indptr=found.qo_indptr,
        kv_indptr=running_sum(kept),
        kv_indices=source[np.repeat(found.kv_indptr[:-1] + skipped, kept) + _count_up(kept)],
        last_page_len=np.where(kept > 0, found.last_page_len, 0).astype(np.int32),
    )


def _count_up(lengths: np.ndarray) -> np.ndarray:
    """0 ... n - 1 for each of the lengths n, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) - np.repeat(ends - lengths, lengths)
