"""Buckets always cover the limits, round up as little as they may, and depend on nothing but the counts."""

from __future__ import annotations

import itertools

import pytest

from trunnion.contract import BatchCounts, Limits
from trunnion.runner.buckets import Buckets, Mode, ladder


def _limits(seqs: int, tokens: int, logits: int | None = None) -> Limits:
    return Limits(max_num_tokens=tokens, max_num_seqs=seqs, max_model_len=64, max_logits_rows=logits or tokens)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 7, 8, 9, 12, 42, 63, 100, 257, 1000, 8192])
def test_a_ladder_ends_at_its_limit_and_wastes_little(limit: int) -> None:
    sizes = ladder(limit)
    assert sizes[-1] == limit
    assert list(sizes) == sorted(set(sizes))
    for small, large in itertools.pairwise(sizes):
        assert large - small <= max(8, small // 2), f"a step of {small + 1} rows would compute {large}"


def test_a_ladder_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        ladder(0)


@pytest.mark.parametrize("seqs", [1, 12, 100, 257])
@pytest.mark.parametrize("query_len", [1, 7])
def test_every_step_within_the_limits_finds_a_bucket(seqs: int, query_len: int) -> None:
    """6 requests of 1 + 6 rows are 42 tokens: buckets count rows, not requests."""
    buckets = Buckets(_limits(seqs, max(seqs * query_len, 300)), decode_query_lens=(1, query_len))
    for count in range(1, seqs + 1):
        tokens = count * query_len
        counts = BatchCounts(
            num_tokens=tokens, num_reqs=count, num_decodes=count, decode_query_len=query_len, num_logits=tokens
        )
        bucket = buckets.select(counts)
        assert bucket.mode is Mode.FULL
        assert bucket.num_reqs >= count
        assert bucket.num_tokens == bucket.num_reqs * query_len
        assert bucket.num_logits >= tokens
        assert buckets.select(BatchCounts(num_tokens=tokens, num_reqs=count, num_logits=1)).mode is Mode.PIECEWISE


def test_fewer_sizes_cover_the_same_limits() -> None:
    limits = _limits(100, 8192)
    fine, coarse = Buckets(limits), Buckets(limits, doublings=1)
    assert len(coarse.tokens) < len(fine.tokens) / 1.5
    assert len(coarse.logits) < len(fine.logits)
    assert len(coarse.all_full()) < len(fine.all_full())
    assert coarse.tokens[-1] == coarse.logits[-1] == 8192
    assert max(bucket.num_reqs for bucket, _ in coarse.all_full()) == 100


@pytest.mark.parametrize("fact", ["has_kv_events", "num_prefixes"])
def test_what_a_graph_cannot_do_gets_no_full_one(fact: str) -> None:
    """Uniform decodes whose layers wait for the host, or whose requests share blocks."""
    buckets = Buckets(_limits(8, 100))
    counts = BatchCounts(num_tokens=3, num_reqs=3, num_decodes=3, num_logits=3)
    assert buckets.select(counts).mode is Mode.FULL
    setattr(counts, fact, 1)
    bucket = buckets.select(counts)
    assert (bucket.mode, bucket.num_tokens, bucket.num_reqs) == (Mode.PIECEWISE, 4, 3)


def test_mixed_steps_keep_their_requests_and_round_their_rows() -> None:
    buckets = Buckets(_limits(8, 100, logits=8))
    bucket = buckets.select(BatchCounts(num_tokens=33, num_reqs=3, num_decodes=2, num_logits=3))
    assert (bucket.mode, bucket.num_tokens, bucket.num_reqs, bucket.num_logits) == (Mode.PIECEWISE, 48, 3, 4)


def test_an_empty_step_stays_empty() -> None:
    bucket = Buckets(_limits(8, 100)).select(BatchCounts())
    assert (bucket.num_tokens, bucket.num_reqs, bucket.num_logits) == (0, 0, 0)


def test_verification_longer_than_the_step_gets_no_graph() -> None:
    assert Buckets(_limits(2, 4), decode_query_lens=(1, 5)).decodes.keys() == {1}


def test_capture_goes_from_the_largest_to_the_smallest() -> None:
    sizes = [bucket.num_tokens for bucket, _ in Buckets(_limits(6, 42), decode_query_lens=(1, 7)).all_full()]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 42
