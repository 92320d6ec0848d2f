"""The requests of a step as FlashInfer is told of them: runs of queries, and the pages of keys that each run sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trunnion.interfaces.attention import StepInputs


@dataclass(frozen=True, slots=True)
class Segments:
    """Runs of queries in CSR form, int32 on the host."""

    qo_indptr: np.ndarray
    """[n + 1]: rows of each run."""
    kv_indptr: np.ndarray
    """[n + 1]: into `kv_indices`."""
    kv_indices: np.ndarray | None
    """Pages of each run; None: those that the host has built, which `kv_indptr` points into."""
    last_page_len: np.ndarray
    """[n]: tokens in a run's last page; 0 for a run without pages."""

    def num_keys(self, block_size: int) -> np.ndarray:
        """[n]: keys that each run sees."""
        pages = self.kv_indptr[1:] - self.kv_indptr[:-1]
        return np.where(pages > 0, (pages - 1) * block_size + self.last_page_len, 0).astype(np.int32)


def segments_of(
    step: StepInputs,
    cache_index: int,
    *,
    block_size: int,
    first: int = 0,
    padded_reqs: int | None = None,
    query_len: int | None = None,
) -> Segments:
    """The runs of requests `first` onwards.

    A request whose last rows have no slot becomes two runs: rows that have one, which see the keys that are written,
    and the others, which see none. With `query_len` the step is a full graph of `padded_reqs` requests: then every
    request of more than one token is two runs, so that a bucket always has as many.
    """
    counts, group = step.counts, step.host.groups[cache_index]
    assert group.slot_mapping is not None and group.kv_indptr is not None and group.kv_last_page_len is not None
    num_reqs = counts.num_reqs
    starts = step.host.query_start_loc[first : num_reqs + 1].numpy()
    indptr = group.kv_indptr[first : num_reqs + 1].numpy()
    last = group.kv_last_page_len[first:num_reqs].numpy()
    if query_len == 1:
        assert padded_reqs is not None, "a graph has a number of requests"
        return _padded_decodes(indptr, last, padded_reqs)
    has_slot = group.slot_mapping[: counts.num_tokens].numpy() >= 0
    written = np.concatenate(([0], np.cumsum(has_slot)))
    rows = starts[1:] - starts[:-1]
    missing = rows - (written[starts[1:]] - written[starts[:-1]])
    if query_len is None and not missing.any():
        return Segments(starts - starts[0], indptr, None, last)
    if query_len is not None:
        assert padded_reqs is not None, "a graph has a number of requests"
        absent = padded_reqs - num_reqs
        rows = np.concatenate((rows, np.full(absent, query_len, dtype=rows.dtype)))
        missing = np.concatenate((missing, np.full(absent, query_len, dtype=rows.dtype)))
        indptr = np.concatenate((indptr, np.full(absent, indptr[-1], dtype=indptr.dtype)))
        last = np.concatenate((last, np.zeros(absent, dtype=last.dtype)))
    assert group.kv_indices is not None
    return _split(rows, missing, indptr, last, group.kv_indices.numpy(), block_size)


def has_no_context(step: StepInputs, segments: Segments, first: int) -> bool:
    """Whether all keys that requests `first` onwards see are rows of this step, each of which has a slot."""
    seq_lens = step.host.seq_lens[first : step.counts.num_reqs].numpy()
    lengths = segments.qo_indptr[1:] - segments.qo_indptr[:-1]
    return segments.kv_indices is None and bool((seq_lens == lengths).all())


def _padded_decodes(indptr: np.ndarray, last: np.ndarray, padded_reqs: int) -> Segments:
    absent = padded_reqs - len(last)
    return Segments(
        qo_indptr=np.arange(padded_reqs + 1, dtype=np.int32),
        kv_indptr=np.concatenate((indptr, np.full(absent, indptr[-1], dtype=np.int32))),
        kv_indices=None,
        last_page_len=np.concatenate((last, np.zeros(absent, dtype=np.int32))),
    )


def _split(
    rows: np.ndarray, missing: np.ndarray, indptr: np.ndarray, last: np.ndarray, indices: np.ndarray, block_size: int
) -> Segments:
    """Two runs per request: what is written, and what is not."""
    num_pages = indptr[1:] - indptr[:-1]
    num_keys = np.where(num_pages > 0, (num_pages - 1) * block_size + last, 0) - np.where(num_pages > 0, missing, 0)
    pages = -(-num_keys // block_size)
    kept = [indices[begin : begin + count] for begin, count in zip(indptr[:-1], pages, strict=True)]
    return Segments(
        qo_indptr=running_sum(np.stack((rows - missing, missing), 1).ravel()),
        kv_indptr=running_sum(np.stack((pages, np.zeros_like(pages)), 1).ravel()),
        kv_indices=np.concatenate((*kept, np.zeros(0, np.int32))).astype(np.int32),
        last_page_len=np.stack((num_keys - np.maximum(pages - 1, 0) * block_size, np.zeros_like(pages)), 1)
        .ravel()
        .astype(np.int32),
    )


def running_sum(values: np.ndarray) -> np.ndarray:
    """[n] -> [n + 1] int32, from 0: bounds of runs of these lengths."""
    return np.concatenate(([0], np.cumsum(values))).astype(np.int32)
