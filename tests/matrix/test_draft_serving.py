"""Drafts through the C++ host: a target with a head trained for it says what it says alone, in fewer steps."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
import torch
from tests.conformance.batches import block_size_for

from trunnion import registry
from trunnion_host.serving import HostConfig, InvalidError, SamplingParams, ServingHost
from trunnion_models.llama.card import CARDS

from .cases import load_hardware
from .hf_reference import build_reference
from .served_drafts import serve, speculate
from .trained_draft import TrainedDraft, save_trained_draft

NUM_TOKENS = 24
LENGTHS = (5, 17, 33, 1, 9, 40)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedDraft:
    return save_trained_draft(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(131) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(trained: TrainedDraft, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy text, each prompt alone."""
    return [trained.greedy(prompt, NUM_TOKENS) for prompt in prompts]


@pytest.fixture
def config(trained: TrainedDraft, pytestconfig: pytest.Config) -> HostConfig:
    hardware = load_hardware(str(pytestconfig.getoption("--hardware")))
    return HostConfig(
        model=str(trained.folder),
        hardware=hardware,
        dtype="float32",
        max_num_tokens=64,
        max_num_seqs=6,
        max_model_len=128,
        block_size=block_size_for(registry.hardware(hardware), 4),
        exit_on_fatal=False,
    )


@pytest.mark.parametrize("num_drafts", [1, 3, 6])
def test_text_is_the_targets_own(
    config: HostConfig,
    trained: TrainedDraft,
    prompts: list[list[int]],
    expected: list[list[int]],
    num_drafts: int,
) -> None:
    """Uneven acceptance over a batch, states rolled back, and no step that runs the model's Python."""
    config = dataclasses.replace(config, num_drafts=num_drafts)
    tokens, stats = serve(config, prompts, SamplingParams(max_tokens=NUM_TOKENS))
    print(f"accepted {stats.accepted_at} of {stats.drafted_at} in {stats.steps} steps")
    assert tokens == expected
    # To the token what plain torch drafts: a head that is fed another row's hidden state drafts otherwise.
    assert (stats.drafted_at, stats.accepted_at) == speculate(trained, prompts, expected, num_drafts)
    assert 0.5 * stats.drafted_at[0] < stats.accepted_at[0] < stats.drafted_at[0]
    assert stats.steps < NUM_TOKENS
    assert (stats.refused_steps, stats.failed_draft_steps) == (0, 0)
    assert (stats.eager_steps, stats.draft_eager_steps) == (0, 0), (stats.eager, stats.draft_eager)
    assert (stats.replays, stats.draft_replays) == (stats.steps, stats.draft_steps)


def test_seeds_say_the_same_with_drafts(config: HostConfig, prompts: list[list[int]]) -> None:
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=0.7, top_p=0.9, seed=11)
    expected, _ = serve(config, prompts, sampling)
    tokens, stats = serve(dataclasses.replace(config, num_drafts=3), prompts, sampling)
    assert tokens == expected
    assert stats.accepted_tokens > 0


def test_chunks_and_preemptions_do_not_show(
    config: HostConfig, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    kv_blocks = 1 + -(-92 // config.block_size)
    config = dataclasses.replace(config, num_drafts=3, max_num_tokens=16, max_num_seqs=4, kv_blocks=kv_blocks)
    tokens, stats = serve(config, prompts, SamplingParams(max_tokens=NUM_TOKENS))
    assert tokens == expected
    assert stats.preemptions > 0
    assert stats.accepted_at[0] > 0.5 * stats.drafted_at[0]


def test_a_model_without_a_draft_is_refused_by_name(config: HostConfig, tmp_path: Path) -> None:
    build_reference(CARDS[0], torch.float32, tmp_path)
    config = dataclasses.replace(config, model=str(tmp_path), max_model_len=CARDS[0].max_model_len, num_drafts=2)
    with pytest.raises(InvalidError, match="num_drafts is 2, but there is no draft to make them: "):
        ServingHost(config)
