"""Requests that share a prompt's beginning, through the C++ host: the same text whether the executor is told or not."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import torch
from tests.conformance.tiny_llama import VOCAB, write_tiny_llama
from tests.matrix.cases import quick_cards
from tests.matrix.hf_reference import build_reference

from trunnion_host.serving import Event, HostConfig, SamplingParams, ServingHost, Stats

NUM_TOKENS = 9
SHARED, OWN = 21, (3, 1, 6, 4)
"""Tokens that all prompts begin with, five whole blocks and one more, and those of each."""
TIE = 0.15
"""Log-probabilities so close may change places: in bfloat16 each is off by up to half of that, levels or not."""


@pytest.fixture(scope="module", params=["llama", "deepseek_v2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder that FlashInfer runs, with latent attention or without."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "llama":
        return write_tiny_llama(folder, head_dim=64)
    card = next(card for card in quick_cards() if card.name == "deepseek_v2-quick")
    return build_reference(card, torch.bfloat16, folder).folder


def _serve(folder: Path, prefix_levels: int) -> tuple[list[list[Event]], Stats]:
    """Greedy tokens of all prompts at once, whose beginning an earlier request has left in the cache."""
    config = HostConfig(
        model=str(folder), hardware="cuda", dtype="bfloat16", max_model_len=64, block_size=4, max_num_seqs=4,
        max_num_tokens=16, prefix_levels=prefix_levels, exit_on_fatal=False, watchdog_s=240.0,
    )  # fmt: skip
    rng = random.Random(3)
    begin = rng.choices(range(VOCAB), k=SHARED)
    prompts = [[*begin, *rng.choices(range(VOCAB), k=count)] for count in OWN]
    greedy = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, min_tokens=NUM_TOKENS, num_logprobs=2)
    with ServingHost(config) as host:
        list(host.stream(host.submit(begin, SamplingParams(temperature=0.0, max_tokens=1))))
        requests = [host.submit(prompt, greedy) for prompt in prompts]
        return [list(host.stream(request))[:-1] for request in requests], host.stats()


def _num_equal(one: list[Event], other: list[Event]) -> int:
    """Leading tokens that two texts have in common; what follows in one and not the other is a tie."""
    assert len(one) == len(other) == NUM_TOKENS
    pairs = zip(one, other, strict=True)
    count = len(list(itertools.takewhile(lambda pair: pair[0].token_id == pair[1].token_id, pairs)))
    for event in (*one[count : count + 1], *other[count : count + 1]):
        (first, best), (second, next_best) = event.top_logprobs
        assert {first, second} == {one[count].token_id, other[count].token_id} and best - next_best < TIE
    return count


def test_the_text_is_the_same(folder: Path) -> None:
    """Most steps are decodes of all requests, which share five blocks."""
    texts, stats = _serve(folder, prefix_levels=0)
    in_levels, level_stats = _serve(folder, prefix_levels=1)
    num_equal = [_num_equal(one, other) for one, other in zip(texts, in_levels, strict=True)]
    assert sum(num_equal) > 0.8 * NUM_TOKENS * len(OWN), f"equal tokens {num_equal} are too few to prove anything"
    assert stats.prefix_level_steps == 0 and level_stats.prefix_levels_off_reason == ""
    assert level_stats.prefix_level_steps >= NUM_TOKENS - 1
    assert level_stats.eager_steps == stats.eager_steps == 0
    assert not level_stats.refused_steps + level_stats.failed_steps
