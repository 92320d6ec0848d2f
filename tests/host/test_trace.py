"""The trace of a host: valid JSON that Perfetto opens, spans that nest, one per step, whole after any end."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trunnion_host.serving import HostConfig, InvalidError, SamplingParams, ServingHost

from .traces import PARTS, Trace, check_trace, parents, read_trace

CONFIG = HostConfig(
    model="null:sleep_us=300",
    hardware="null",
    max_num_tokens=16,
    max_num_seqs=4,
    max_model_len=64,
    block_size=4,
    kv_blocks=20,
)


@pytest.fixture
def library(build: Path) -> Path:
    (found,) = build.rglob("libtrunnion_host_null.so")
    return found


@pytest.mark.parametrize("overlap", [False, True], ids=["plain", "overlap"])
def test_every_step_and_every_request_is_there(library: Path, tmp_path: Path, overlap: bool) -> None:
    path = tmp_path / "steps.json"
    with ServingHost(dataclasses.replace(CONFIG, overlap=overlap, trace_file=path), library=library) as host:
        ids = [host.submit([7] * (5 * n + 1), SamplingParams(max_tokens=10)) for n in range(8)]
        for request in ids:
            list(host.stream(request))
        last = host.submit([1], SamplingParams(max_tokens=60))
        host.next_event(last)
        host.cancel(last)
        while not host.next_event(last).finished:  # type: ignore[union-attr]
            pass
        stats = host.stats()
    trace = read_trace(path)
    check_trace(trace, steps=stats.steps, requests=9)
    assert set(parents(trace.spans[1])) == {("step", ""), *((name, "step") for name in PARTS)}
    ahead = parents(trace.spans.get(2, []))
    assert ahead == stats.overlapped_steps * [("schedule", ""), ("build inputs", "")]
    assert bool(ahead) == overlap
    assert_overlap(trace)
    reasons = [
        event["args"]["reason"] for events in trace.lives.values() for event in events if "reason" in event["args"]
    ]
    assert sorted(reasons) == ["cancelled"] + 8 * ["length"]
    assert sum(span["args"]["tokens"] for span in trace.named("step")) == stats.prefill_tokens + stats.decode_tokens
    assert trace.counters["blocks"][-1]["used"] >= 0 == trace.counters["requests"][-1]["waiting"]


def assert_overlap(trace: Trace) -> None:
    """What the planner's track shows lies within the step before the one it plans."""
    steps = {span["args"]["number"]: span for span in trace.named("step")}
    for span in trace.spans.get(2, []):
        before = steps[span["args"]["step"] - 1]
        assert before["ts"] <= span["ts"] and span["ts"] + span["dur"] <= before["ts"] + before["dur"]


def test_a_killed_process_leaves_a_valid_file(library: Path, tmp_path: Path) -> None:
    path = tmp_path / "steps.json"
    program = f"""
from pathlib import Path
from trunnion_host.serving import HostConfig, ServingHost
config = HostConfig(model="null:sleep_us=1000", hardware="null", max_model_len=2048, trace_file={str(path)!r})
host = ServingHost(config, library=Path({str(library)!r}))
for event in host.stream(host.submit([1])):
    print(event.token_id, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for _ in range(20):
            process.stdout.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    trace = read_trace(path)
    assert len(trace.named("step")) >= 19
    parents(trace.spans[1])


def test_a_file_that_cannot_be_written_is_refused_by_name(library: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"trace_file .*nowhere/steps\.json. cannot be written: No such file"):
        ServingHost(dataclasses.replace(CONFIG, trace_file=tmp_path / "nowhere" / "steps.json"), library=library)
