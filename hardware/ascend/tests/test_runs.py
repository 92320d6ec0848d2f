"""What the fused operator is told of a step, in numbers: ends of queries are sums, keys are counted run by run."""

from __future__ import annotations

import pytest
import torch
from tests.conformance.batches import Request, Shape, build_step

from trunnion.interfaces.attention import AttentionSpec
from trunnion_ascend.runs import Runs, runs_of

BLOCK_SIZE = 16


def runs(*requests: Request, window: int | None = None, num_decodes: int = 0, **options: int) -> Runs:
    spec = AttentionSpec(num_qo_heads=4, num_kv_heads=2, head_dim=64, scale=1.0, dtype=torch.bfloat16, window=window)
    query_len = requests[0].query if num_decodes else 1
    shape = Shape("", requests, num_decodes, decode_query_len=query_len)
    return runs_of(build_step(spec, shape, BLOCK_SIZE, 64, 0), 0, **options)


def test_decodes_and_prompts() -> None:
    found = runs(Request(9, 1), Request(0, 5), Request(30, 4))
    assert found.query_ends == [1, 6, 10]
    assert found.num_keys == [10, 5, 34]
    assert found.is_one_each


def test_keys_are_counted_from_the_blocks_that_a_window_has_left() -> None:
    """A window of 5 behind 40 tokens: the first 32 are dropped, in two blocks."""
    assert runs(Request(40, 1), Request(19, 1), Request(3, 1), window=5).num_keys == [9, 20, 4]


def test_rows_without_a_slot_are_runs_of_their_own_that_see_nothing() -> None:
    found = runs(Request(6, 3, unwritten=2), Request(11, 3))
    assert found.query_ends == [1, 3, 6, 6]
    assert found.num_keys == [7, 0, 14, 0]
    assert found.requests.tolist() == [0, 0, 1, 1] and not found.is_one_each


def test_a_bucket_has_as_many_runs_whatever_is_in_it() -> None:
    full = runs(Request(6, 3, unwritten=1), Request(11, 3), num_decodes=2, padded_reqs=3, query_len=3)
    assert full.query_ends == [2, 3, 6, 6, 6, 9]
    assert full.num_keys == [8, 0, 14, 0, 0, 0]
    single = runs(Request(6, 1), num_decodes=1, padded_reqs=3, query_len=1)
    assert (single.query_ends, single.num_keys) == ([1, 2, 3], [7, 0, 0])


def test_a_bucket_without_requests_has_a_key_to_read() -> None:
    """Of the reserved block, by rows that nobody reads: without any the operator refuses the call."""
    found = runs(padded_reqs=2, query_len=1)
    assert (found.query_ends, found.num_keys) == ([1, 2], [1, 0])
    assert runs().num_rows == 0


def test_long_runs_are_cut_and_later_parts_see_more() -> None:
    found = runs(Request(10, 7), Request(2, 1), max_rows=3)
    assert found.query_ends == [3, 6, 7, 8]
    assert found.num_keys == [13, 16, 17, 3]
    assert found.requests.tolist() == [0, 0, 0, 1]
    assert runs(Request(10, 7, unwritten=4), max_rows=3).num_keys == [13, 0, 0]


def test_more_runs_than_the_operator_takes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"4097 runs of queries are more than the 4096 of .*: lower max_num_seqs"):
        runs(padded_reqs=4097, query_len=1)
