"""EAGLE-3 drafts through the C++ host: the target's own text, in fewer steps, by tokens that plain torch drafts."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from tests.conformance.batches import block_size_for

from trunnion import registry
from trunnion_host.serving import HostConfig, InvalidError, SamplingParams, ServingHost

from .cases import load_hardware
from .served_drafts import serve, speculate
from .trained_eagle3 import TrainedEagle3, save_trained_eagle3

NUM_TOKENS = 20
LENGTHS = (5, 17, 1, 30)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedEagle3:
    return save_trained_eagle3(tmp_path_factory.mktemp("eagle3"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(131) for _ in range(length)] for length in LENGTHS]


@pytest.fixture(scope="module")
def expected(trained: TrainedEagle3, prompts: list[list[int]]) -> list[list[int]]:
    """transformers' greedy text, each prompt alone."""
    return [trained.greedy(prompt, NUM_TOKENS) for prompt in prompts]


@pytest.fixture
def config(trained: TrainedEagle3, pytestconfig: pytest.Config) -> HostConfig:
    hardware = load_hardware(str(pytestconfig.getoption("--hardware")))
    return HostConfig(
        model=str(trained.folder),
        draft_model=str(trained.draft_model),
        num_drafts=3,
        hardware=hardware,
        dtype="float32",
        max_num_tokens=32,
        max_num_seqs=4,
        max_model_len=128,
        block_size=block_size_for(registry.hardware(hardware), 4),
        exit_on_fatal=False,
    )


def test_text_is_the_targets_own(
    config: HostConfig, trained: TrainedEagle3, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    """With the draft and without; and no step that runs the model's Python."""
    sampling = SamplingParams(max_tokens=NUM_TOKENS)
    plain, alone = serve(dataclasses.replace(config, draft_model=None, num_drafts=0), prompts, sampling)
    tokens, stats = serve(config, prompts, sampling)
    print(f"accepted {stats.accepted_at} of {stats.drafted_at} in {stats.steps} steps, {alone.steps} without drafts")
    assert tokens == plain == expected
    # To the token what plain torch drafts: a draft that reads another layer, or takes its tokens for the target's, does
    # not.
    assert (stats.drafted_at, stats.accepted_at) == speculate(trained, prompts, expected, 3)
    assert stats.accepted_tokens > 0.2 * stats.drafted_at[0]
    assert stats.steps < alone.steps
    assert (stats.refused_steps, stats.failed_draft_steps) == (0, 0)
    assert (stats.eager_steps, stats.draft_eager_steps) == (0, 0), (stats.eager, stats.draft_eager)


def test_chunks_prefix_hits_and_preemptions_do_not_show(
    config: HostConfig, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    config = dataclasses.replace(config, max_num_tokens=10, max_num_seqs=3, kv_blocks=1 + -(-72 // config.block_size))
    tokens, stats = serve(config, [*prompts, prompts[1]], SamplingParams(max_tokens=NUM_TOKENS))
    assert tokens == [*expected, expected[1]]
    assert stats.preemptions > 0 or stats.prefix_hit_tokens > 0
    assert stats.accepted_tokens > 0


REFUSED = {
    "no drafts asked for": ({"num_drafts": 0}, "draft_model is '.*draft', and num_drafts is 0: expected at least 1"),
    "nothing there": ({"draft_model": "/nowhere"}, "/nowhere: no such model folder"),
    "a target for a draft": ({"draft_model": ...}, "'draft_vocab_size' is missing; is it a draft of EAGLE-3"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_a_draft_is_named(config: HostConfig, changes: dict[str, object], message: str) -> None:
    changes = {name: config.model if value is ... else value for name, value in changes.items()}
    with pytest.raises(InvalidError, match=message):
        ServingHost(dataclasses.replace(config, **changes))  # type: ignore[arg-type]


def test_a_draft_that_does_not_fit_is_named(config: HostConfig, trained: TrainedEagle3, tmp_path: Path) -> None:
    """By the host's own words for it."""
    text = (trained.draft_model / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"vocab_size": 131', '"vocab_size": 140', 1))
    (tmp_path / "model.safetensors").symlink_to(trained.draft_model / "model.safetensors")
    message = (
        "num_drafts is 3, but there is no draft to make them: vocab_size 140 of the draft is not its target's, 131"
    )
    with pytest.raises(InvalidError, match=message):
        ServingHost(dataclasses.replace(config, draft_model=str(tmp_path)))
