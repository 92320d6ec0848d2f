"""Drafts through the Python client, over the executor without Python, whose draft agrees as often as it is told to."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest

from trunnion_host.serving import HostConfig, InvalidError, SamplingParams, ServingHost, Stats

from .traces import check_trace, parents, read_trace

MODELS = ["null:window=0", "null:window=7,csr=1", "null:window=6,recurrent=1"]
CONFIG = HostConfig(
    model="null",
    hardware="null",
    max_num_tokens=64,
    max_num_seqs=6,
    max_model_len=128,
    block_size=4,
    exit_on_fatal=False,
)


@pytest.fixture
def library(build: Path) -> Path:
    (found,) = build.rglob("libtrunnion_host_null.so")
    return found


def run(library: Path, sampling: SamplingParams, **changes: object) -> tuple[list[list[int]], Stats]:
    rng = random.Random(1)
    prompts = [[rng.randrange(131) for _ in range(rng.randrange(1, 60))] for _ in range(20)]
    with ServingHost(dataclasses.replace(CONFIG, **changes), library=library) as host:  # type: ignore[arg-type]
        tokens: dict[int, list[int]] = {host.submit(prompt, sampling): [] for prompt in prompts}
        open_requests = set(tokens)
        while open_requests:
            event = host.next_event()
            assert event is not None
            if event.finished:
                assert event.reason == "length", event.error
                open_requests.discard(event.request_id)
            else:
                tokens[event.request_id].append(event.token_id)
        return list(tokens.values()), host.stats()


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "seeded"])
@pytest.mark.parametrize("model", MODELS)
def test_drafts_never_change_the_text(library: Path, model: str, temperature: float) -> None:
    sampling = SamplingParams(max_tokens=30, temperature=temperature, seed=5)
    expected, plain = run(library, sampling, model=model)
    assert plain.num_drafts == plain.verify_steps == plain.draft_steps == 0
    for agree in (0, 40, 100):
        for num_drafts in range(1, 7):
            tokens, stats = run(library, sampling, model=f"{model},draft=1,agree={agree}", num_drafts=num_drafts)
            assert tokens == expected
            # The library validates every batch of both executors.
            assert (stats.refused_steps, stats.failed_draft_steps, stats.blocks_used) == (0, 0, 0)
            assert len(stats.drafted_at) == len(stats.accepted_at) == num_drafts
            assert (sum(stats.drafted_at), sum(stats.accepted_at)) == (stats.drafted_tokens, stats.accepted_tokens)
            if temperature == 0.0 and agree != 40:
                assert stats.accepted_tokens == (stats.drafted_tokens if agree else 0)


def test_perfect_drafts_take_a_quarter_of_the_steps(library: Path) -> None:
    with ServingHost(dataclasses.replace(CONFIG, model="null:draft=1", num_drafts=3), library=library) as host:
        assert sum(not event.finished for event in host.stream(host.submit([1], SamplingParams(max_tokens=101)))) == 101
        stats = host.stats()
    assert (stats.steps, stats.verify_steps, stats.draft_steps) == (26, 25, 75)
    assert stats.accepted_at == [25, 25, 25]


def test_a_failed_draft_step_costs_drafts_only(library: Path) -> None:
    sampling = SamplingParams(max_tokens=30)
    expected, _ = run(library, sampling)
    for step in range(1, 12):
        model = f"null:draft=1,draft_fail_at={step}"
        tokens, stats = run(library, sampling, model=model, num_drafts=3)
        assert tokens == expected
        assert (stats.failed_draft_steps, stats.failed_steps) == (1, 0)
        assert 0 < stats.accepted_tokens == stats.drafted_tokens


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "null"}, "num_drafts is 3, but there is no draft to make them: role"),
        ({"overlap": True}, "num_drafts is 3 with overlap"),
        ({"num_drafts": 9}, "num_drafts is 9, expected 0 ... 8"),
        ({"max_num_tokens": 3, "max_num_seqs": 1}, "has 4 rows, max_num_tokens is 3"),
    ],
    ids=["no-draft", "overlap", "many", "few-rows"],
)
def test_what_cannot_draft_is_refused_by_name(library: Path, changes: dict[str, object], words: str) -> None:
    config = dataclasses.replace(CONFIG, model="null:draft=1", num_drafts=3)
    with pytest.raises(InvalidError, match=words):
        ServingHost(dataclasses.replace(config, **changes), library=library)  # type: ignore[arg-type]


def test_draft_steps_are_spans_of_their_own(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    config = dataclasses.replace(CONFIG, model="null:draft=1,sleep_us=300", num_drafts=3, trace_file=path)
    with ServingHost(config, library=library) as host:
        list(host.stream(host.submit([1, 2, 3], SamplingParams(max_tokens=41))))
        stats = host.stats()
    trace = read_trace(path)
    check_trace(trace, steps=stats.steps, requests=1)
    assert len(trace.named("draft execute")) == stats.draft_steps == 30
    assert ("draft execute", "draft") in parents(trace.spans[1])
