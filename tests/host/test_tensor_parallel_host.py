"""One model over several processes through the serving host: the same tokens, no rank lost or left behind."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trunnion_host.serving as serving
from trunnion.text.sample_model import find_sample_model
from trunnion_host import _serving_abi as abi
from trunnion_host.serving import DeadError, HostConfig, InvalidError, SamplingParams, ServingHost
from trunnion_host.worker_processes import WorkerProcesses

from .conftest import HOST_PACKAGE, tool
from .tiny_models import CONFIGS, VOCAB_SIZE, greedy, save_model

NUM_TOKENS = 24
SECONDS = 30
"""Longer than any of this takes; shorter than gloo's own patience."""
MOST_ATTEMPTS = 10
"""To have prompts meet in a pool that is too small for them."""
NULL = HostConfig(
    model="null",
    hardware="null",
    tp_size=3,
    max_num_tokens=64,
    max_num_seqs=4,
    max_model_len=128,
    block_size=4,
    exit_on_fatal=False,
)


@pytest.fixture(scope="session")
def library(build: Path) -> Path:
    """The extension module."""
    (found,) = (build / "trunnion-host").glob("_host.abi3.so")
    return found


@pytest.fixture
def null_host(build: Path) -> Iterator[Callable[..., ServingHost]]:
    """Open a host of three ranks over the library without Python; all are closed, and no process is left."""
    (library,) = build.rglob("libtrunnion_host_null.so")
    hosts: list[ServingHost] = []

    def open_host(**changes: object) -> ServingHost:
        hosts.append(ServingHost(dataclasses.replace(NULL, **changes), library=library))  # type: ignore[arg-type]
        return hosts[-1]

    yield open_host
    for host in hosts:
        host.close()
        for pid in host.worker_pids:
            assert not is_alive(pid)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_model("llama", folder)
    return folder


def some_prompts(count: int, longest: int) -> list[list[int]]:
    rng = random.Random(3)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(8, longest))] for _ in range(count)]


def serve(host: ServingHost, prompts: list[list[int]], num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """All prompts at once, greedily."""
    order = [host.submit(prompt, SamplingParams(max_tokens=num_tokens)) for prompt in prompts]
    tokens: dict[int, list[int]] = {request: [] for request in order}
    unfinished = set(order)
    while unfinished:
        event = host.next_event(timeout=SECONDS)
        assert event is not None
        if event.finished:
            assert event.reason == "length", event
            unfinished.remove(event.request_id)
        else:
            tokens[event.request_id].append(event.token_id)
    return [tokens[request] for request in order]


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + SECONDS
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"{[pid for pid in pids if is_alive(pid)]} outlive their host"
        time.sleep(0.02)


@pytest.mark.parametrize("model_type", CONFIGS)
def test_two_ranks_say_what_one_says(model_type: str, library: Path, tmp_path: Path) -> None:
    """Chunked prefill, six requests in a pool for about three, then two that are found in the prefix cache."""
    prompts = some_prompts(6, 40)
    truth = save_model(model_type, tmp_path)
    expected = [greedy(truth, prompt, NUM_TOKENS) for prompt in prompts]
    config = HostConfig(
        model=str(tmp_path),
        max_num_tokens=20,
        max_num_seqs=6,
        max_model_len=72,
        block_size=4,
        kv_blocks=40,
        watchdog_s=SECONDS,
        exit_on_fatal=False,
    )
    for tp_size, overlap in ((1, False), (2, False), (2, True)):
        asked = dataclasses.replace(config, tp_size=tp_size, overlap=overlap)
        with ServingHost(asked, library=library) as host:
            for _ in range(MOST_ATTEMPTS):
                assert serve(host, prompts) == expected
                if host.stats().preemptions:
                    break  # else the machine was busy, and prompts ended before others were submitted
            assert serve(host, prompts[:2]) == expected[:2]
            before = host.stats().prefix_hit_tokens
            assert serve(host, prompts[:2]) == expected[:2]
            stats, pids = host.stats(), host.worker_pids
            assert stats.preemptions > 0
            assert stats.prefix_hit_tokens > before
            assert stats.steps == stats.execute_calls == stats.step_gil_entries
            assert stats.refused_steps == stats.failed_steps == 0
            for rank in range(1, tp_size):
                figures = host.worker_stats(rank)
                assert stats.steps == figures["executes"] == figures["step_gil_entries"]
                # A replay runs no Python of the model: its collectives came from the tape.
                assert figures["replays"] == stats.replays == stats.steps
                assert figures["eager_steps"] == figures["copied_tensors"] == 0
        assert len(pids) == tp_size - 1
        assert not any(map(is_alive, pids))


@pytest.mark.parametrize("model", ["null:window=7,csr=1,sleep_us=500", "null:window=6,recurrent=1,sleep_us=500"])
def test_workers_run_every_step(null_host: Callable[..., ServingHost], model: str) -> None:
    """Rows of every kind of group pass the checks of every rank."""
    alone = null_host(model=model, tp_size=1, prefix_caching=False)
    prompts = some_prompts(12, 60)
    expected = [serve(alone, [prompt])[0] for prompt in prompts]
    host = null_host(model=model, kv_blocks=40)
    assert serve(host, prompts) == expected
    steps = host.stats().steps
    assert [host.worker_stats(rank)["executes"] for rank in (1, 2)] == [steps, steps]
    assert host.stats().preemptions > 0
    with pytest.raises(InvalidError, match="rank 3 is none of the 2 workers"):
        host.worker_stats(3)


def test_failed_step_of_several_ranks_is_fatal(null_host: Callable[..., ServingHost]) -> None:
    host = null_host(model="null:fail_at=3")
    request = host.submit([1, 2], SamplingParams(max_tokens=20))
    last = list(host.stream(request))[-1]
    assert last.reason == "error" and "failed at step 3 as asked" in last.error
    assert last.error.startswith("rank ")
    with pytest.raises(DeadError, match=r"rank [012]: failed at step 3 as asked"):
        host.submit([1])
    wait_until_gone(list(host.worker_pids))


def other_workers(monkeypatch: pytest.MonkeyPatch, **changes: object) -> None:
    """Start workers with another configuration than rank 0's."""

    def start(config: HostConfig, library: Path | None) -> WorkerProcesses:
        return WorkerProcesses(dataclasses.replace(config, **changes), library)  # type: ignore[arg-type]

    monkeypatch.setattr(serving, "WorkerProcesses", start)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model": "null:nonsense=1"}, "rank [12]: model: .*nonsense"),
        ({"model": "null:vocab=77"}, "rank 1: has loaded another model, or with other limits, than rank 0"),
        ({"max_num_tokens": 65}, "rank 1: has loaded another model, or with other limits, than rank 0"),
        ({"hardware": "tpu"}, "rank [12]: .*tpu"),
    ],
    ids=["model", "vocabulary", "limits", "hardware"],
)
def test_a_worker_that_does_not_fit_is_named(
    null_host: Callable[..., ServingHost], monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], line: str
) -> None:
    other_workers(monkeypatch, **changes)
    with pytest.raises(InvalidError, match=line) as caught:
        null_host()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("fault", ["refuse_at", "fail_at", "fatal_at"])
def test_what_a_worker_meets_ends_the_host(
    null_host: Callable[..., ServingHost], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    other_workers(monkeypatch, model=f"null:{fault}=4")
    host = null_host(model="null:sleep_us=2000")
    last = list(host.stream(host.submit([1, 2], SamplingParams(max_tokens=100))))[-1]
    assert last.reason == "error"
    assert last.error.startswith(("rank 1: ", "rank 2: ")) and "at step 4 as asked" in last.error
    wait_until_gone(list(host.worker_pids))


def test_a_killed_worker_is_named(null_host: Callable[..., ServingHost]) -> None:
    host = null_host(model="null:sleep_us=2000")
    request = host.submit([1, 2], SamplingParams(max_tokens=100))
    os.kill(host.worker_pids[1], signal.SIGKILL)
    last = list(host.stream(request))[-1]
    assert (last.reason, last.error) == ("error", "rank 2: its process has ended, or closed the connection")
    # The others end as well.
    wait_until_gone(list(host.worker_pids))


class FakeWorkers:
    """The place of a worker process, held by the test itself."""

    def __init__(self, config: HostConfig, library: Path | None) -> None:
        ours, self.theirs = socket.socketpair()
        self.sockets, self.init_method = [ours.detach()], ""
        self.processes: list[subprocess.Popen[bytes]] = []
        self.answer()

    def answer(self) -> None:
        """Says nothing."""

    def forget_rendezvous(self) -> None:
        pass

    def kill(self) -> None:
        pass

    def end(self) -> None:
        self.theirs.close()


class Stranger(FakeWorkers):
    def answer(self) -> None:
        self.theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


class Truncated(FakeWorkers):
    def answer(self) -> None:
        self.theirs.sendall(b"mTRN\x01\x00\x00\x00")
        self.theirs.close()


@pytest.mark.parametrize(
    ("workers", "error", "line"),
    [
        (FakeWorkers, DeadError, "rank 1: has not loaded the model within 0.3 s of rank 0"),
        (Stranger, DeadError, "rank 1: what it sends is no message of trunnion"),
        (Truncated, DeadError, "rank 1: its process has ended, or closed the connection"),
    ],
)
def test_a_worker_that_is_none_is_named(
    null_host: Callable[..., ServingHost],
    monkeypatch: pytest.MonkeyPatch,
    workers: type[FakeWorkers],
    error: type[Exception],
    line: str,
) -> None:
    monkeypatch.setattr(serving, "WorkerProcesses", workers)
    with pytest.raises(error) as caught:
        null_host(tp_size=2, worker_timeout_s=0.3)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"tp_size": 0}, "tp_size is 0"), ({"worker_devices": (1,)}, "worker_devices names 1, tp_size 3 needs")],
    ids=["tp_size", "worker_devices"],
)
def test_bad_options_are_refused(null_host: Callable[..., ServingHost], changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        null_host(**changes)


def test_heads_that_do_not_divide_are_named(library: Path, tmp_path: Path) -> None:
    save_model("llama", tmp_path, hidden_size=48, num_attention_heads=3)
    with pytest.raises(InvalidError) as caught:
        ServingHost(HostConfig(model=str(tmp_path), tp_size=2, max_model_len=64), library=library)
    assert str(caught.value).startswith("rank 0: ")
    assert "num_heads 3 cannot be divided over 2 ranks" in str(caught.value)


@dataclasses.dataclass
class Program:
    """A process that serves `model` on two ranks, and has printed the pid of its worker and a first token."""

    process: subprocess.Popen[str]
    worker: int

    def end(self) -> tuple[int, str]:
        """The exit code and what stands on standard error."""
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors


@pytest.fixture
def program(library: Path, llama: Path) -> Iterator[Program]:
    text = f"""
from pathlib import Path
from trunnion_host.serving import HostConfig, SamplingParams, ServingHost
config = HostConfig(model={str(llama)!r}, tp_size=2, max_num_seqs=2, max_model_len=96, watchdog_s=2.0)
host = ServingHost(config, library=Path({str(library)!r}))
print(*host.worker_pids, flush=True)
while True:
    for event in host.stream(host.submit([1, 2, 3])):
        print(event.token_id, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    worker = int(process.stdout.readline() or -1)
    assert worker > 0, process.communicate()[1]
    process.stdout.readline()
    try:
        yield Program(process, worker)
        wait_until_gone([process.pid, worker])
    finally:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)


def test_a_worker_killed_between_collectives_ends_the_program_in_one_line(program: Program) -> None:
    os.kill(program.worker, signal.SIGKILL)
    assert program.end() == (70, "trunnion: fatal: rank 1: its process has ended, or closed the connection\n")


def test_a_worker_that_hangs_is_named_by_the_watchdog(program: Program) -> None:
    os.kill(program.worker, signal.SIGSTOP)
    code, errors = program.end()
    assert code == 70
    assert errors == "trunnion: fatal: execute has not returned within watchdog_s = 2 s; no answer from rank 1\n"
    os.kill(program.worker, signal.SIGCONT)


def test_a_worker_does_not_outlive_rank_0(program: Program) -> None:
    program.process.kill()
    assert program.end()[0] == -signal.SIGKILL


def test_a_worker_stuck_in_a_collective_does_not_outlive_rank_0(program: Program) -> None:
    program.process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    program.process.kill()
    assert program.end()[0] == -signal.SIGKILL


def test_worker_options_lie_as_the_header_says(tmp_path: Path) -> None:
    names = [field[0] for field in abi.WorkerOptions._fields_]
    prints = [f'printf("%zu\\n", offsetof(trn_worker_options, {name}));' for name in names]
    (tmp_path / "layout.c").write_text(
        '#include <stdio.h>\n#include "trunnion/worker.h"\nint main(void) {\n'
        + "\n".join([*prints, 'printf("%zu\\n", sizeof(trn_worker_options));'])
        + "\nreturn 0;\n}\n"
    )
    command = [tool("cc"), "-std=c11", "-Wall", "-Werror", "-pedantic", f"-I{HOST_PACKAGE / 'include'}", "layout.c"]
    subprocess.run([*command, "-o", "layout"], check=True, cwd=tmp_path)
    printed = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    expected = [getattr(abi.WorkerOptions, name).offset for name in names] + [ctypes.sizeof(abi.WorkerOptions)]
    assert [int(line) for line in printed.split()] == expected


@pytest.mark.nightly
def test_smollm2_runs_on_three_ranks_and_not_on_two(library: Path) -> None:
    """9 heads and 3 KV heads."""
    config = HostConfig(
        model=str(find_sample_model("smollm2")), dtype="float32", max_num_seqs=4, max_model_len=128, exit_on_fatal=False
    )
    prompts = [[504, 3575, 282, 4649, 314], [6403, 2180, 253, 655, 665, 436, 253], [17, 28, 216, 34]]
    outputs = []
    for tp_size in (1, 3):
        with ServingHost(dataclasses.replace(config, tp_size=tp_size), library=library) as host:
            outputs.append(serve(host, prompts))
    assert outputs[0] == outputs[1]
    with pytest.raises(InvalidError, match=r"rank 0: .*num_heads 9 cannot be divided over 2 ranks"):
        ServingHost(dataclasses.replace(config, tp_size=2), library=library)
