"""Deadlines fire on time, cancelled work is not computed, bursts are refused, SIGTERM drains, expiry costs no rate."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
from serving import Server, serving, wait_for, write_echo
from tritonclient.grpc import service_pb2, service_pb2_grpc

Code = grpc.StatusCode


def request(values: list[float], **parameters: int) -> service_pb2.ModelInferRequest:
    message = service_pb2.ModelInferRequest(model_name="echo")
    message.inputs.add(name="x", datatype="FP32", shape=[len(values), 2])
    message.raw_input_contents.append(np.array([[value, 0] for value in values], np.float32).tobytes())
    for name, value in parameters.items():
        message.parameters[name].int64_param = value
    return message


class Caller:
    """A connection that starts calls and says how each ended, and when."""

    def __init__(self, server: Server) -> None:
        self.channel = grpc.insecure_channel(server.grpc)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def start(self, values: list[float], timeout: float = 20, **parameters: int) -> grpc.Future:
        call = self.stub.ModelInfer.future(request(values, **parameters), timeout=timeout)
        call.started = time.monotonic()
        call.add_done_callback(lambda done: setattr(done, "seconds", time.monotonic() - call.started))
        return call


def result(call: grpc.Future) -> list[float]:
    return np.frombuffer(call.result().raw_output_contents[0], np.float32).tolist()


def code(call: grpc.Future) -> grpc.StatusCode:
    wait_for(call.done, 30, "an answer")
    wait_for(lambda: hasattr(call, "seconds"), 5, "its time")
    return call.code()


@pytest.fixture
def slow(programs: Path, tmp_path: Path):
    """A server whose batches take half a second."""
    write_echo(tmp_path / "echo" / "1", base_us=500_000, allowed_sizes=(4,), max_queue_rows=16)
    with serving(programs, tmp_path) as server:
        yield server


def test_a_timeout_fires_while_the_model_is_busy(slow: Server) -> None:
    caller = Caller(slow)
    first = caller.start([1])
    time.sleep(0.1)
    late = caller.start([2])
    timed = [caller.stub.ModelInfer.future(request([3], timeout=50_000), timeout=20) for _ in range(3)]
    start = time.monotonic()
    for call in timed:
        wait_for(call.done, 5, "a timeout")
        assert call.code() == Code.DEADLINE_EXCEEDED, call.code()
    # The running batch had 400 ms to go.
    assert time.monotonic() - start < 0.3
    assert result(first) == [1] and result(late) == [2]
    assert slow.metric("bundle_rows_total") == 2


def test_a_cancelled_call_is_not_computed(slow: Server) -> None:
    caller = Caller(slow)
    first = caller.start([1])
    time.sleep(0.1)
    cancelled = [caller.start([9, 9, 9, 9]) for _ in range(4)]
    wait_for(lambda: slow.metric("bundle_queue_rows") == 16, 5, "a full queue")
    for call in cancelled:
        call.cancel()
    wait_for(lambda: slow.metric("bundle_queue_rows") == 0, 0.3, "an empty queue while the first batch runs")
    last = caller.start([2])
    assert result(first) == [1] and result(last) == [2]
    assert slow.metric("bundle_batches_total") == 2
    assert slow.metric("bundle_requests_total", code="cancelled") == 4


def test_a_burst_past_the_queue_is_refused_and_the_rest_answered(slow: Server) -> None:
    caller = Caller(slow)
    calls = [caller.start([index]) for index in range(60)]
    codes = Counter(code(call) for call in calls)
    assert set(codes) == {Code.OK, Code.RESOURCE_EXHAUSTED}, codes
    # One batch runs, with one row or more, and 16 rows wait.
    assert 17 <= codes[Code.OK] <= 24
    for index, call in enumerate(calls):
        if call.code() == Code.OK:
            assert result(call) == [index]


def test_neighbours_in_a_batch_do_not_see_each_other(programs: Path, tmp_path: Path) -> None:
    write_echo(tmp_path / "echo" / "1", base_us=20_000, allowed_sizes=(4, 16, 64), max_queue_rows=4096)
    with serving(programs, tmp_path) as server:
        caller = Caller(server)
        # Full and partial batches in turn; NaN in one request, an invalid one among them, 70 rows on 64.
        for round in range(6):
            values = [[float(100 * round + index)] * (1 + index % 5) for index in range(30 - 5 * (round % 2))]
            calls = [caller.start(rows) for rows in values]
            spoilt = caller.start([float("nan")])
            wrong = caller.stub.ModelInfer.future(service_pb2.ModelInferRequest(model_name="echo"), timeout=20)
            # A shape that says more than the bytes: whoever believed it would read the neighbours.
            cut = request([1.0])
            cut.inputs[0].shape[0] = 8
            short = caller.stub.ModelInfer.future(cut, timeout=20)
            long = caller.start([float(row) for row in range(70)])
            for rows, call in zip(values, calls, strict=True):
                assert result(call) == rows
            assert np.isnan(result(spoilt)).all()
            assert wrong.exception().code() == short.exception().code() == Code.INVALID_ARGUMENT
            assert result(long) == [float(row) for row in range(70)]


def test_a_faster_priority_overtakes(programs: Path, tmp_path: Path) -> None:
    write_echo(tmp_path / "echo" / "1", base_us=100_000, allowed_sizes=(4,), priority_levels=2, default_priority=2)
    with serving(programs, tmp_path) as server:
        caller = Caller(server)
        first = caller.start([0] * 4)
        time.sleep(0.03)
        slow = [caller.start([1] * 4) for _ in range(3)]
        time.sleep(0.03)
        assert 0.01 < server.metric("bundle_queue_oldest_seconds", priority="2") < 1
        assert server.metric("bundle_queue_oldest_seconds", priority="1") == 0
        urgent = caller.start([2] * 4, priority=1)
        for call in (first, *slow, urgent):
            assert code(call) == Code.OK
        assert urgent.started + urgent.seconds < min(call.started + call.seconds for call in slow)
        assert server.metric("bundle_queue_oldest_seconds") == 0


def test_sigterm_answers_what_is_queued_and_refuses_what_comes(slow: Server) -> None:
    caller = Caller(slow)
    calls = [caller.start([index]) for index in range(10)]
    wait_for(lambda: slow.metric("bundle_queue_rows") > 0, 5, "a queue")
    codes: list[int] = []
    ending = threading.Thread(target=lambda: codes.append(slow.stop()))
    ending.start()
    slow.wait_for_line("draining")
    late = caller.start([99], timeout=5)
    assert code(late) == Code.UNAVAILABLE
    for index, call in enumerate(calls):
        assert result(call) == [index]
    ending.join(30)
    assert codes == [0]


def rate(server: Server, seconds: float, *, expiring: bool) -> tuple[float, Counter[grpc.StatusCode]]:
    """Rows per second that arrive in time, with and without requests that cannot be answered in theirs."""
    codes: Counter[grpc.StatusCode] = Counter()
    end = time.monotonic() + seconds

    def run(thread: int) -> int:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(server.grpc, [("thread", thread)]))
        count = turn = 0
        while time.monotonic() < end:
            turn += 1
            calls = [stub.ModelInfer.future(request([turn] * 8), timeout=20) for _ in range(7)]
            doomed = [stub.ModelInfer.future(request([0] * 8, timeout=1000), timeout=20) for _ in range(3 * expiring)]
            for call in calls:
                assert result(call) == [turn] * 8
                count += 8
            codes.update(call.exception().code() if call.exception() else Code.OK for call in doomed)
        return count

    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        total = sum(pool.map(run, range(2)))
    return total / (time.monotonic() - start), codes


def resident_bytes(server: Server) -> int:
    pages = Path(f"/proc/{server.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_expiring_requests_cost_the_others_little(programs: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """30 % of all requests expire; `--soak-seconds 600 --timeout 900` is long enough to see what is kept of each."""
    seconds = pytestconfig.getoption("--soak-seconds")
    windows = max(1, round(seconds / 20))
    # Slow enough that the client's own work does not decide.
    write_echo(tmp_path / "echo" / "1", base_us=40_000, allowed_sizes=(32,), max_queue_rows=4096)
    with serving(programs, tmp_path) as server:
        rates: dict[bool, list[float]] = {False: [], True: []}
        codes: Counter[grpc.StatusCode] = Counter()
        memory = 0
        for _ in range(windows):
            for expiring in (False, True):
                found, more = rate(server, seconds / windows / 2, expiring=expiring)
                rates[expiring].append(found)
                codes.update(more)
            memory = memory or resident_bytes(server)
        print(f"with and without: {statistics.mean(rates[True]) / statistics.mean(rates[False]):.3f}, {dict(codes)}")
        assert codes[Code.DEADLINE_EXCEEDED] > 0.5 * sum(codes.values()), codes
        assert statistics.mean(rates[True]) >= 0.9 * statistics.mean(rates[False]), rates
        assert server.metric("bundle_queue_rows") == 0
        assert resident_bytes(server) < 1.2 * memory + (8 << 20), "memory of expired requests is kept"
