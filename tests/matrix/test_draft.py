"""Drafts: a Qwen3-Next MTP head beside its target, against plain torch, and in a loop that speculates."""

from __future__ import annotations

import random

import pytest

from trunnion.contract import Limits

from .conftest import load_hardware
from .draft_double import SpeculatingHost, make_pair
from .trained_draft import TrainedDraft, save_trained_draft

NUM_DRAFTS = 3
LIMITS = Limits(
    max_num_tokens=40,
    max_num_seqs=5,
    max_model_len=64,
    max_logits_rows=40,
    block_size=4,
    max_decode_query_len=1 + NUM_DRAFTS,
)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedDraft:
    return save_trained_draft(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="session")
def hardware(pytestconfig: pytest.Config) -> str:
    return load_hardware(str(pytestconfig.getoption("--hardware")))


def test_speculation_gives_the_greedy_text(trained: TrainedDraft, hardware: str) -> None:
    """Chunked prefill, short drafts, and batches that accept unevenly: nothing of it shows in the text."""
    target, draft = make_pair(trained.folder, hardware, None, LIMITS)
    host = SpeculatingHost(target, draft, NUM_DRAFTS, num_blocks=100)
    rng = random.Random(3)
    prompts = [rng.choices(range(1, 131), k=length) for length in (9, 1, 17, 4, 12)]
    texts = host.run(prompts, 24)
    assert texts == [trained.greedy(prompt, 24) for prompt in prompts]
    assert any(len(step) > 2 for step in host.accepted), "no batch has accepted unevenly"
