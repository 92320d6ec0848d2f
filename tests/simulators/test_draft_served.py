"""Drafts through the serving host over the simulated device: steady verifications are replays, and guesses too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.matrix.trained_draft import save_trained_draft
from tests.matrix.trained_eagle3 import save_trained_eagle3

from trunnion import registry
from trunnion_host.serving import HostConfig, SamplingParams, ServingHost

NUM_TOKENS, NUM_DRAFTS = 60, 3
PROMPTS = [[3, 7, 11], [90], [5, 64, 2, 8, 120, 17]]


@pytest.mark.parametrize(
    ("save", "share"), [(save_trained_draft, 0.5), (save_trained_eagle3, 0.2)], ids=["head", "eagle3"]
)
def test_verifications_replay(save: Callable[[Path], Any], share: float, tmp_path: Path) -> None:
    """At least `share` of the first drafts come true."""
    trained = save(tmp_path)
    registry.load_hardware_from(Path(__file__).parent / "trunnion_sim")
    config = HostConfig(
        model=str(tmp_path),
        hardware="sim",
        dtype="float32",
        max_num_tokens=16,
        max_num_seqs=4,
        max_model_len=128,
        block_size=4,
        exit_on_fatal=False,
        num_drafts=NUM_DRAFTS,
        draft_model=None if trained.draft_model is None else str(trained.draft_model),
    )
    with ServingHost(config) as host:
        ids = [host.submit(prompt, SamplingParams(max_tokens=NUM_TOKENS)) for prompt in PROMPTS]
        tokens = [[event.token_id for event in host.stream(request) if not event.finished] for request in ids]
        stats = host.stats()
    assert tokens == [trained.greedy(prompt, NUM_TOKENS) for prompt in PROMPTS]
    assert (stats.eager_steps, stats.draft_eager_steps) == (0, 0), (stats.eager, stats.draft_eager)
    assert (stats.replays, stats.draft_replays) == (stats.steps, stats.draft_steps)
    assert stats.verify_steps > NUM_TOKENS / (1 + NUM_DRAFTS)
    assert stats.accepted_at[0] > share * stats.drafted_at[0]
