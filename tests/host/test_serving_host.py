"""The Python client of the serving host, over the executor without Python: its own faults, and the C++ ones by name."""

from __future__ import annotations

import ctypes
import dataclasses
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trunnion_host import _serving_abi as abi
from trunnion_host.serving import (
    ClosedError,
    DeadError,
    HostConfig,
    InvalidError,
    SamplingParams,
    ServingHost,
    Stats,
    UnknownRequestError,
)

from .conftest import HOST_PACKAGE, tool

SMALL = HostConfig(
    model="null",
    hardware="null",
    max_num_tokens=64,
    max_num_seqs=8,
    max_model_len=128,
    block_size=4,
    exit_on_fatal=False,
)
MODELS = ["null:window=0", "null:window=12", "null:window=7,csr=1", "null:window=6,recurrent=1"]
STRUCTS = {
    "trn_host_options": abi.HostOptions,
    "trn_host_sampling": abi.HostSampling,
    "trn_host_image": abi.HostImage,
    "trn_host_request": abi.HostRequest,
    "trn_host_event": abi.HostEvent,
}

Open = Callable[..., ServingHost]


@pytest.fixture(params=[False, True], ids=["plain", "overlap"])
def host(build: Path, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Open a host over the library without Python; all are closed, with no block held, when the test ends."""
    small = dataclasses.replace(SMALL, overlap=request.param)
    (library,) = build.rglob("libtrunnion_host_null.so")
    hosts: list[ServingHost] = []

    def open_host(**changes: object) -> ServingHost:
        hosts.append(ServingHost(dataclasses.replace(small, **changes), library=library))  # type: ignore[arg-type]
        return hosts[-1]

    yield open_host
    for opened in hosts:
        opened.close()


def some_prompts(count: int = 20) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(131) for _ in range(rng.randrange(1, 60))] for _ in range(count)]


def tokens_of(host: ServingHost, request_id: int) -> list[int]:
    return [event.token_id for event in host.stream(request_id) if not event.finished]


def together(host: ServingHost, prompts: list[list[int]], sampling: SamplingParams) -> tuple[list[list[int]], Stats]:
    ids = [host.submit(prompt, sampling) for prompt in prompts]
    tokens: dict[int, list[int]] = {request_id: [] for request_id in ids}
    open_requests = set(ids)
    while open_requests:
        event = host.next_event(timeout=30)
        assert event is not None
        if event.finished:
            assert event.reason == "length", event
            open_requests.remove(event.request_id)
        else:
            tokens[event.request_id].append(event.token_id)
    stats = host.stats()
    assert (stats.blocks_used, stats.running, stats.waiting) == (0, 0, 0)
    assert stats.steps == stats.execute_calls
    return [tokens[request_id] for request_id in ids], stats


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prefix_caching": False},
        {"kv_blocks": 24},
        {"kv_blocks": 24, "prefix_caching": False},
        {"max_num_tokens": 8},
    ],
    ids=["default", "uncached", "small-pool", "small-pool-uncached", "small-steps"],
)
def test_batched_equals_alone(host: Open, model: str, changes: dict[str, object]) -> None:
    sampling = SamplingParams(temperature=0.8, seed=3, max_tokens=30)
    single = host(model=model, prefix_caching=False, overlap=False)
    expected = [tokens_of(single, single.submit(prompt, sampling)) for prompt in some_prompts()]
    tokens, stats = together(host(model=model, **changes), some_prompts(), sampling)
    assert tokens == expected
    assert stats.preemptions > 0 or "kv_blocks" not in changes


def test_overlap_is_seen_in_the_figures(host: Open) -> None:
    opened = host()
    tokens_of(opened, opened.submit([1, 2, 3], SamplingParams(max_tokens=20)))
    stats = opened.stats()
    assert stats.overlapped_steps in (0, stats.steps - 1) and stats.dropped_plans == stats.dropped_rows == 0


def test_stats_have_groups_and_reasons(host: Open) -> None:
    plain, recurrent = host(model="null:window=12").stats(), host(model="null:window=0,recurrent=1").stats()
    assert [group.kind for group in plain.groups] == ["full", "window"]
    assert plain.prefix_caching and plain.prefix_caching_off_reason == ""
    assert not recurrent.prefix_caching and "recurrent" in recurrent.prefix_caching_off_reason
    assert host(prefix_caching=False).stats().prefix_caching_off_reason == "off by option"


def test_events_carry_what_was_asked_for(host: Open) -> None:
    opened = host()
    events = list(opened.stream(opened.submit([1, 2, 3], SamplingParams(max_tokens=2, num_logprobs=3))))
    assert [event.finished for event in events] == [False, False, True]
    assert events[0].top_logprobs[0] == (events[0].token_id, events[0].logprob)
    assert len(events[0].top_logprobs) == 3
    assert (events[2].reason, events[2].num_prompt_tokens, events[2].num_output_tokens) == ("length", 3, 2)
    silent = list(opened.stream(opened.submit([1, 2, 3], SamplingParams(max_tokens=1))))
    assert silent[0].logprob is None and silent[0].top_logprobs == ()
    stopped = list(opened.stream(opened.submit([1, 2, 3], SamplingParams(eos_ids=[events[1].token_id]))))
    assert [event.token_id for event in stopped if not event.finished] == [events[0].token_id]
    assert (stopped[-1].reason, stopped[-1].stop_id) == ("stop", events[1].token_id)


def test_leaving_a_stream_cancels_it(host: Open) -> None:
    opened = host(model="null:sleep_us=2000")
    request_id = opened.submit([1, 2, 3], SamplingParams(max_tokens=100))
    for _ in opened.stream(request_id):
        break
    events = []
    while not events or not events[-1].finished:
        events.append(opened.next_event(request_id))
    assert events[-1].reason == "cancelled"
    assert opened.stats().blocks_used == 0
    with pytest.raises(UnknownRequestError, match=f"request {request_id}"):
        opened.next_event(request_id)


def test_timeouts_return_none(host: Open) -> None:
    started = time.monotonic()
    assert host().next_event(timeout=0.15) is None
    assert 0.14 < time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("token_ids", "sampling", "words"),
    [
        ([], SamplingParams(), "the prompt has no tokens"),
        ([0, 131], SamplingParams(), "token_ids[1] is 131, the vocabulary has ids 0 ... 130"),
        ([2**32 + 1], SamplingParams(), "does not fit 32 bits"),
        ([1] * 128, SamplingParams(), "max_model_len is 128"),
        ([1], SamplingParams(top_p=0.0), "top_p is 0.000000, expected above 0 and at most 1"),
        ([1], SamplingParams(stop_ids=[500]), "stop_ids[0] is 500"),
        ([1], SamplingParams(max_tokens=2**32), "max_tokens is 4294967296, which does not fit 32 bits"),
        ([1], SamplingParams(temperature=1.0, top_k=2**32 + 1), "top_k is 4294967297"),
    ],
    ids=["empty", "vocabulary", "overflow", "too-long", "top_p", "stop_ids", "max_tokens", "top_k"],
)
def test_bad_requests_are_refused_by_name(
    host: Open, token_ids: list[int], sampling: SamplingParams, words: str
) -> None:
    with pytest.raises(ValueError) as caught:
        host().submit(token_ids, sampling)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("options", ["window=0", "window=7,csr=1", "window=6,recurrent=1"])
def test_embeddings_do_not_depend_on_company(host: Open, options: str) -> None:
    model = f"null:pooled=23,{options}"
    single = host(model=model, prefix_caching=False)
    expected = [single.embed(prompt) for prompt in some_prompts()]
    assert {len(vector) for vector in expected} == {23} == {single.embedding_width}
    for changes in ({}, {"max_num_tokens": 8}, {"kv_blocks": 24}, {"prefix_caching": False}):
        opened = host(model=model, **changes)
        ids = [opened.submit_embedding(prompt) for prompt in some_prompts()]
        events = [opened.next_event(request_id) for request_id in ids]
        assert [event.embedding for event in events if event is not None] == expected
        assert {(event.reason, event.num_output_tokens) for event in events if event is not None} == {("stop", 0)}
        stats = opened.stats()
        assert (stats.blocks_used, stats.output_tokens, stats.decode_tokens < len(ids)) == (0, 0, True)


def test_a_model_serves_one_kind_of_request(host: Open) -> None:
    pools, speaks = host(model="null:pooled=5"), host()
    assert (pools.embedding_width, speaks.embedding_width) == (5, 0)
    with pytest.raises(InvalidError, match="kind is generate, but this model pools embeddings"):
        pools.submit([1, 2])
    with pytest.raises(InvalidError, match="kind is embed, but this model makes logits"):
        speaks.embed([1, 2])
    with pytest.raises(InvalidError, match="the prompt has 129 tokens, max_model_len is 128"):
        pools.embed([1] * 129)
    assert len(pools.embed([1] * 128)) == 5
    pools.close()
    with pytest.raises(ClosedError):
        pools.embed([1])


def test_requests_that_never_fit_are_refused(host: Open) -> None:
    with pytest.raises(InvalidError, match="need 11 blocks of cache group 0, its pool has 9"):
        host(kv_blocks=10).submit([1] * 30, SamplingParams(max_tokens=12))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "null:nonsense=1"}, "nonsense"),
        ({"hardware": "tpu"}, "tpu"),
        ({"queue_size": 0}, "queue_size is 0"),
        ({"num_blocks": (9,)}, "num_blocks has 1 entries"),
        ({"kv_bytes": 5}, "kv_bytes is 5"),
        ({"kv_blocks": 2**32 + 9}, "kv_blocks is 4294967305, which does not fit 32 bits"),
        ({"max_num_tokens": 2**32 + 64}, "max_num_tokens is 4294967360"),
    ],
    ids=["model", "hardware", "queue_size", "num_blocks", "kv_bytes", "kv_blocks", "max_num_tokens"],
)
def test_bad_options_are_refused_by_name(host: Open, changes: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidError) as caught:
        host(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_failed_step_is_recomputed(host: Open) -> None:
    sampling = SamplingParams(temperature=0.8, seed=5, max_tokens=20)
    expected, _ = together(host(), some_prompts(8), sampling)
    for step in (1, 2, 9):
        tokens, stats = together(host(model=f"null:fail_at={step}"), some_prompts(8), sampling)
        assert tokens == expected
        assert stats.failed_steps == 1


def test_fatal_and_hang_kill_the_host(host: Open) -> None:
    opened = host(model="null:fatal_at=3")
    request_id = opened.submit([1], SamplingParams(max_tokens=10))
    last = list(opened.stream(request_id))[-1]
    assert last.reason == "error" and "fatal at step 3" in last.error
    with pytest.raises(DeadError, match="fatal at step 3"):
        opened.submit([1])
    with pytest.raises(DeadError):
        opened.next_event()


def test_watchdog_ends_the_process_in_one_line(build: Path) -> None:
    (library,) = build.rglob("libtrunnion_host_null.so")
    program = f"""
from pathlib import Path
from trunnion_host.serving import HostConfig, ServingHost
config = HostConfig(model="null:hang_at=2", hardware="null", max_num_seqs=2, max_model_len=64, watchdog_s=0.2)
host = ServingHost(config, library=Path({str(library)!r}))
list(host.stream(host.submit([1])))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 70
    assert done.stderr == "trunnion: fatal: execute has not returned within watchdog_s = 0.2 s\n"


def test_readers_on_many_threads(host: Open) -> None:
    opened = host(model="null:window=12", kv_blocks=40)
    sampling = SamplingParams(temperature=1.0, seed=2, max_tokens=20)
    prompts = some_prompts(16)
    single = host(model="null:window=12", prefix_caching=False)
    expected = [tokens_of(single, single.submit(prompt, sampling)) for prompt in prompts]
    results: dict[int, list[int]] = {}

    def serve(index: int) -> None:
        results[index] = tokens_of(opened, opened.submit(prompts[index], sampling))

    threads = [threading.Thread(target=serve, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [results[index] for index in range(len(prompts))] == expected


def test_close_wakes_readers_and_is_idempotent(host: Open) -> None:
    opened = host(model="null:sleep_us=2000")
    request_id = opened.submit([1], SamplingParams(max_tokens=100))
    reasons: list[str] = []
    reader = threading.Thread(target=lambda: reasons.extend(event.reason for event in opened.stream(request_id)))
    reader.start()
    time.sleep(0.02)
    opened.close()
    opened.close()
    reader.join(timeout=10)
    assert reasons[-1] == "cancelled"
    with pytest.raises(ClosedError):
        opened.submit([1])
    with pytest.raises(ClosedError):
        opened.next_event()
    assert opened.stats().blocks_used == 0


def test_structs_lie_as_the_header_says(tmp_path: Path) -> None:
    names = [(struct, field[0]) for struct, mirror in STRUCTS.items() for field in mirror._fields_]
    lines = [f'printf("%zu\\n", offsetof({struct}, {field}));' for struct, field in names]
    lines += [f'printf("%zu\\n", sizeof({struct}));' for struct in STRUCTS]
    (tmp_path / "layout.c").write_text(
        '#include <stdio.h>\n#include "trunnion/serving.h"\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    command = [tool("cc"), "-std=c11", "-Wall", "-Werror", "-pedantic", f"-I{HOST_PACKAGE / 'include'}", "layout.c"]
    subprocess.run([*command, "-o", "layout"], check=True, cwd=tmp_path)
    printed = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    expected = [getattr(STRUCTS[struct], field).offset for struct, field in names]
    expected += [ctypes.sizeof(mirror) for mirror in STRUCTS.values()]
    assert [int(line) for line in printed.split()] == expected


def test_constants_are_the_headers() -> None:
    text = (HOST_PACKAGE / "include" / "trunnion" / "serving.h").read_text()
    for name, value in {
        "TRN_HOST_MAX_LOGPROBS": f"{abi.MAX_LOGPROBS}",
        "TRN_HOST_ERROR_SIZE": f"{abi.ERROR_SIZE}",
    }.items():
        assert f"#define {name} {value}" in text
    for name in ("OK", "TIMEOUT", "INVALID", "UNKNOWN_REQUEST", "CLOSED", "DEAD"):
        assert f"TRN_HOST_{name} = {getattr(abi, name)}" in text
    for name in ("EVENT_TOKEN", "EVENT_FINISHED", "REQUEST_GENERATE", "REQUEST_EMBED"):
        assert f"TRN_{name} = {getattr(abi, name)}" in text
    for value, name in enumerate(abi.FINISH_REASONS):
        assert f"TRN_FINISH_{name.upper() or 'NONE'} = {value}" in text
