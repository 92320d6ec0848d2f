"""Steps of an executor on the simulated package: every kind of step replays, and gives what the eager step gives."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch
from capture import SimulatedFault
from tests.matrix.cases import quick_cards
from tests.matrix.host_double import Chunk
from trunnion_sim.hardware import SimHardware

from trunnion.contract import BatchCounts, Limits, MemoryProfile
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Mode
from trunnion.runner.buckets import Buckets
from trunnion_models.card import Card

from .rig import Rig

TOLERANCE = 2e-5
"""Of the largest logit: matrix products of other sizes round differently."""
LLAMA = next(card for card in quick_cards() if card.name == "llama-quick")


def assert_close(
    rows: torch.Tensor, expected: torch.Tensor, *, ignored_columns: int = 0, tolerance: float = TOLERANCE
) -> None:
    """Equal but for rounding, and finite."""
    rows, expected = rows[..., ignored_columns:], expected[..., ignored_columns:]
    assert rows.isfinite().all(), "NaN or infinity"
    error = float((rows - expected).abs().max() / expected.abs().max())
    assert error <= tolerance, f"differs by {error:.1e} of the largest value"


def decode_8_5_8(rig: Rig) -> torch.Tensor:
    """Eight requests decode, then five of them, then all."""
    requests = rig.requests(8, 20)
    rows = rig.prefill(requests, 5)
    for batch in (requests, requests[2:7], requests, requests[:1], requests):
        rows += [rig.decode(batch), rig.decode(batch)]
    return torch.cat(rows)


@pytest.mark.parametrize("mode", [Mode.PIECEWISE, Mode.FULL], ids=lambda mode: mode.value)
def test_fewer_rows_than_before_see_nothing_of_them(card: Card, mode: Mode, rigs: Callable[..., Rig]) -> None:
    """Batch 8, then 5, then 8, where padding rows are NaN from the embedding on, and block 0 and state 0 hold NaN."""
    expected = decode_8_5_8(rigs(card, Mode.EAGER))
    rig = rigs(card, mode)
    rig.poison_padding()
    # Tied embeddings give the poisoned token a logit of NaN.
    assert_close(decode_8_5_8(rig), expected, ignored_columns=1)
    counters = rig.executor.counters
    assert counters.replays == 8 + 10
    assert not counters.eager


def verify(rig: Rig) -> torch.Tensor:
    """Uniform steps of three tokens, some of whose drafts came out short, and others were refused."""
    requests = rig.requests(6, 30)
    rows = rig.prefill(requests, 7)
    for _ in range(3):
        for batch, missing in ((requests, (0, 1, 2, 0, 2, 1)), (requests[1:4], (0, 0, 1))):
            chunks = [Chunk(request, 3, placeholders=count) for request, count in zip(batch, missing, strict=True)]
            output, fence = rig.host.launch(chunks)
            rig.executor.wait(fence)
            for index, (request, count) in enumerate(zip(batch, missing, strict=True)):
                rows.append(output[3 * index : 3 * (index + 1) - count].clone())
                request.refuse(rig.rng.randrange(3 - count))
    return torch.cat(rows)


def test_verification_of_drafts_has_full_graphs(card: Card, rigs: Callable[..., Rig]) -> None:
    """1 + k tokens per request; placeholders write nothing and reach nobody."""
    expected = verify(rigs(card, Mode.EAGER))
    rig = rigs(card)
    rig.poison_padding()
    assert_close(verify(rig), expected, ignored_columns=1)
    assert rig.runner.buckets.select(BatchCounts(9, 3, 9, 3, 3)).mode is Mode.FULL


def long_card() -> Card:
    """A Llama whose requests may have 128 tokens."""
    config = {**LLAMA.config, "max_position_embeddings": 128}
    return dataclasses.replace(LLAMA, name="llama-long", config=config, max_model_len=128)


@pytest.mark.parametrize("mode", [Mode.PIECEWISE, Mode.FULL], ids=lambda mode: mode.value)
def test_a_graph_captured_without_tokens_serves_long_requests(mode: Mode, rigs: Callable[..., Rig]) -> None:
    """Length 1, 2, then 100 and beyond: nothing of the lengths at capture is baked in."""

    def run(rig: Rig) -> torch.Tensor:
        short, long = rig.requests(2, 110)
        rows = [rig.decode([short])]
        rows += [row for _ in range(4) for row in rig.prefill([long], 24)]
        rows += [rig.decode([long, short]) for _ in range(14)]
        return torch.cat(rows)

    assert_close(run(rigs(long_card(), mode)), run(rigs(long_card(), Mode.EAGER)))


def test_warm_up_leaves_no_trace_in_the_first_step(card: Card, rigs: Callable[..., Rig]) -> None:
    """The first decode ever, and a second warm-up between two steps."""
    rig, eager = rigs(card), rigs(card, Mode.EAGER)
    ours, theirs = rig.requests(3, 4), eager.requests(3, 4)
    assert_close(rig.decode(ours), eager.decode(theirs))
    rig.executor.warm_up()
    assert_close(rig.decode(ours), eager.decode(theirs))


def test_the_pool_does_not_grow_with_the_layers(rigs: Callable[..., Rig]) -> None:
    """3, 8 and 32 layers capture in the same memory, which the profile covers.

    The third layer is the first to find the pool as all that follow do: its tensors lie where those of two layers
    before it lay, and the gaps between.
    """
    high_waters = []
    for layers in (3, 8, 32):
        config = {**LLAMA.config, "num_hidden_layers": layers}
        rig = rigs(
            dataclasses.replace(LLAMA, name=f"llama-{layers}-layers", config=config),
            max_num_seqs=4,
            max_num_tokens=12,
            max_logits_rows=12,
        )
        high_waters.append(rig.runner.pool.high_water)
        assert rig.runner.pool.high_water <= rig.executor.memory_profile().graphs
    assert len(set(high_waters)) == 1


@pytest.mark.parametrize("limits", [(1, 1, 1), (12, 12, 3), (100, 100, 100), (257, 42, 257), (42, 6, 42)], ids=str)
def test_every_step_within_the_limits_has_a_bucket_that_is_captured(limits: tuple[int, int, int]) -> None:
    """Whatever the counts are, and the same bucket for the same counts."""
    tokens, seqs, rows = limits
    buckets = Buckets(Limits(max_num_tokens=tokens, max_num_seqs=seqs, max_model_len=512, max_logits_rows=rows), (1, 7))
    full = {(bucket.num_tokens, bucket.num_reqs) for bucket, _ in buckets.all_full()}
    rng = random.Random(5)
    for _ in range(2000):
        length = rng.choice((1, 1, 7, 3))
        num_reqs = rng.randint(0, min(seqs, tokens // length))
        uniform = num_reqs * length
        num_tokens = uniform if rng.random() < 0.5 else rng.randint(num_reqs, tokens)
        num_decodes = num_reqs if num_tokens == uniform else rng.randint(0, num_reqs)
        counts = BatchCounts(num_tokens, num_reqs, rng.randint(0, min(rows, num_tokens)), num_decodes, length)
        bucket = buckets.select(counts)
        assert bucket == buckets.select(dataclasses.replace(counts))
        assert (
            bucket.num_tokens >= num_tokens and bucket.num_reqs >= num_reqs and bucket.num_logits >= counts.num_logits
        )
        if bucket.mode is Mode.FULL:
            assert (bucket.num_tokens, bucket.num_reqs) in full
        else:
            assert bucket.num_tokens in (0, *buckets.tokens) and bucket.num_logits in (0, *buckets.logits)


def test_a_step_without_a_graph_is_an_error(rigs: Callable[..., Rig]) -> None:
    """Never a silent eager step."""
    rig = rigs(LLAMA)
    requests = rig.requests(2, 8)
    rig.prefill(requests, 3)
    rig.runner.steps.full.clear()
    with pytest.raises(LookupError, match="tokens and requests"):
        rig.decode(requests)
    rig.runner.steps.bodies.clear()
    with pytest.raises(LookupError, match="tokens"):
        rig.prefill(requests, 2)


def test_a_weight_that_was_replaced_is_an_error(rigs: Callable[..., Rig]) -> None:
    """A graph reads addresses: a reload must keep them."""
    rig = rigs(LLAMA)
    norm = rig.executor.model.get_parameter("model.norm.weight")
    norm.data = norm.data.clone()
    with pytest.raises(SimulatedFault, match="outlives"):
        rig.decode(rig.requests(1, 3))


def test_empty_steps_and_steps_without_rows_replay(rigs: Callable[..., Rig]) -> None:
    """T = 0, and N = 0: planned, counted, nothing eager, and the next step is right."""
    rig, eager = rigs(LLAMA), rigs(LLAMA, Mode.EAGER)
    outputs = []
    for each in (rig, eager):
        (request,) = each.requests(1, 9)
        assert each.host.step([]) == []
        assert each.host.step([Chunk(request, 4, ())])[0].shape[0] == 0
        outputs.append(each.host.step([Chunk(request, 5)])[0])
    assert_close(*outputs)
    assert rig.executor.counters.replays == 3 and not rig.executor.counters.eager
    assert rig.executor.counters.plans == 3 * len(rig.runner.groups)


def test_the_report_says_what_was_captured(rigs: Callable[..., Rig]) -> None:
    """All buckets, largest first; breaks are the groups' calls."""
    rig = rigs(LLAMA)
    report = rig.executor.warm_up()
    assert not report.eager
    layers = LLAMA.config["num_hidden_layers"]
    assert report.captured[0] == f"24 tokens, {layers} breaks"
    assert "8 decodes of 1 tokens" in report.captured and "8 decodes of 3 tokens" in report.captured
    assert report.bytes == rig.runner.pool.high_water > 0


def test_graphs_beyond_the_profile_end_the_start(rigs: Callable[..., Rig]) -> None:
    """The host has given away what the profile did not ask for."""

    class Optimist(SimHardware):
        def memory_profile(self, model: Model, limits: Limits) -> MemoryProfile:
            return dataclasses.replace(super().memory_profile(model, limits), graphs=1000)

    with pytest.raises(RuntimeError, match=r"graphs take \d+ bytes, memory_profile promised at most 1000"):
        rigs(LLAMA, Optimist()).executor.warm_up()
