"""Streams and events that graphs take: counted before the first capture, met by fewer sizes, or refused."""

from __future__ import annotations

import dataclasses
import gc
import re
from pathlib import Path

import pytest
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import ExecutorConfig
from trunnion.contract import Limits
from trunnion.errors import UnsupportedError
from trunnion.runner.buckets import Buckets
from trunnion.runner.model_executor import ModelExecutor
from trunnion_ascend.capture import NpuCapture, NpuSegment
from trunnion_ascend.graph_budget import RESERVED, RESERVED_EVENTS, GraphBudget
from trunnion_ascend.hardware import AscendHardware
from trunnion_ascend.soc import SOCS, Soc

EVENTS = 65536
A2 = GraphBudget(streams=1984, events=EVENTS)


def _limits(tokens: int) -> Limits:
    return Limits(max_num_tokens=tokens, max_num_seqs=256, max_model_len=4096, max_logits_rows=256)


def test_one_device_holds_the_graphs_of_a_large_model() -> None:
    """80 layers, steps of up to 8192 tokens; with tensor parallelism fewer sizes, and fewer layers."""
    for budget, num_layers in ((A2, 64), (A2, 80), (GraphBudget(events=EVENTS, streams=1984, num_domains=1), 32)):
        buckets = budget.choose(_limits(8192), None, num_layers)
        budget.check(buckets, num_layers)
        assert 0.5 < budget.needed(buckets, num_layers) / budget.for_graphs <= 1


def test_sizes_are_as_fine_as_the_streams_allow() -> None:
    limits = _limits(8192)
    assert A2.choose(limits, None, 32).tokens == Buckets(limits).tokens
    assert len(GraphBudget(events=EVENTS, streams=800).choose(limits, None, 32).tokens) < len(Buckets(limits).tokens)
    assert len(GraphBudget(events=EVENTS, streams=1984, taken=1184).choose(limits, None, 32).tokens) < len(
        Buckets(limits).tokens
    )


@pytest.mark.parametrize("num_domains", [0, 1])
def test_what_does_not_fit_is_refused_with_what_would(num_domains: int) -> None:
    budget = GraphBudget(events=EVENTS, streams=1500, num_domains=num_domains)
    num_layers = 100 if num_domains == 0 else 40
    with pytest.raises(UnsupportedError) as error:
        budget.check(budget.choose(_limits(8192), None, num_layers), num_layers)
    text = str(error.value)
    assert f"{num_layers} attention layers each, take " in text
    assert f"the device has {budget.for_graphs} for them" in text
    assert text.endswith("or no graphs at all: AscendHardware(Mode.EAGER)")
    fits = re.search(r"max_num_tokens of at most (\d+)", text)
    assert fits is not None
    budget.check(budget.choose(_limits(int(fits[1])), None, num_layers), num_layers)


def test_without_room_for_any_size_no_size_is_named() -> None:
    budget = GraphBudget(events=EVENTS, streams=RESERVED + 50)
    with pytest.raises(UnsupportedError, match=r"has 50 for them; choices: fewer max_num_seqs \(now 256\)"):
        budget.check(budget.choose(_limits(8192), None, 100), 100)


def test_sizes_are_as_fine_as_the_events_allow() -> None:
    """One event for each layer of each full graph; groups of the reference take none."""
    limits, full = _limits(512), len(Buckets(_limits(512)).all_full())
    enough = GraphBudget(streams=10**6, events=RESERVED_EVENTS + full * 80)
    assert enough.events_needed(Buckets(limits), 80) == enough.events_for_tasks
    assert len(enough.choose(limits, None, 80, 80).all_full()) == full
    fewer = dataclasses.replace(enough, events_taken=1)
    assert len(fewer.choose(limits, None, 80, 80).all_full()) < full
    assert len(fewer.choose(limits, None, 80, 0).all_full()) == full
    fewer.check(fewer.choose(limits, None, 80, 80), 80, 80)


def test_too_many_events_are_refused_with_the_number() -> None:
    budget = GraphBudget(streams=10**6, events=RESERVED_EVENTS + 100)
    buckets = budget.choose(_limits(512), None, 80, 80)
    message = (
        rf"80 attention layers each that are updated, take {len(buckets.all_full()) * 80} events, .* has 100 for them"
    )
    with pytest.raises(UnsupportedError, match=message):
        budget.check(buckets, 80, 80)


@pytest.mark.parametrize("soc", SOCS, ids=lambda soc: soc.family)
def test_every_chip_has_events_beyond_those_that_are_reserved(soc: Soc) -> None:
    assert GraphBudget(streams=soc.max_streams, events=soc.max_events).events_for_tasks > 0


class Crowded(AscendHardware):
    """A device with few streams, or few events."""

    def __init__(self, streams: int, events: int) -> None:
        super().__init__()
        self._budget = GraphBudget(streams=RESERVED + streams, events=RESERVED_EVENTS + events)

    def graph_budget(self) -> GraphBudget:
        return self._budget


def _executor(hardware: AscendHardware, folder: Path) -> ModelExecutor:
    limits = Limits(max_num_tokens=24, max_num_seqs=4, max_model_len=64, max_logits_rows=8, block_size=16)
    model = write_tiny_llama(folder, head_dim=64)
    config = ExecutorConfig(model=model, hardware="ascend", limits=limits, dtype="bfloat16")
    executor = ModelExecutor.create(config, hardware)
    executor.allocate_kv_cache([16])
    return executor


@pytest.mark.parametrize(("streams", "events", "what"), [(5, 1000, "5"), (1000, 3, "3")])
def test_an_executor_that_does_not_fit_captures_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: int, events: int, what: str
) -> None:
    captures: list[NpuCapture] = []
    monkeypatch.setattr(NpuCapture, "begin", lambda self: captures.append(self))
    with pytest.raises(UnsupportedError, match=rf"take \d+ (streams|events), and the device has {what} for them"):
        _executor(Crowded(streams, events), tmp_path).warm_up()
    assert captures == []


def test_graphs_are_as_many_as_were_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segments: list[NpuSegment] = []
    end = NpuCapture.end

    def counted(self: NpuCapture) -> NpuSegment:
        segments.append(end(self))
        return segments[-1]

    monkeypatch.setattr(NpuCapture, "end", counted)
    hardware = AscendHardware()
    executor = _executor(hardware, tmp_path)
    report = executor.warm_up()
    num_tasks = sum(len(segment.tasks) for segment in segments)
    counted_as = (
        f"{len(segments)} of 1800 streams for graphs, {num_tasks} of {EVENTS - RESERVED_EVENTS} events for tasks"
    )
    assert f"all of it: {counted_as}" in report.captured and num_tasks > 0
    assert hardware.graph_budget().taken == len(segments)
    assert hardware.graph_budget().events_taken == num_tasks


def test_executors_of_a_process_share_the_streams(tmp_path: Path) -> None:
    hardware = AscendHardware()
    first = _executor(hardware, tmp_path)
    alone = hardware.graph_budget()
    second = _executor(hardware, tmp_path)
    assert hardware.graph_budget().taken == 2 * alone.taken
    assert hardware.graph_budget().for_graphs == alone.for_graphs - alone.taken
    assert (
        hardware.graph_budget().events_for_tasks == alone.events_for_tasks - alone.events_taken < alone.events_for_tasks
    )
    del first, second
    gc.collect()
    assert (hardware.graph_budget().taken, hardware.graph_budget().events_taken) == (0, 0)
