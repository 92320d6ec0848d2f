"""The load tool measures what it says: right answers, no errors, waits that count from the time a call was planned."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from serving import Server, serving, write_echo


def bench(
    programs: Path, server: Server, bundle: Path, *options: str, model: str = "echo"
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    target = bundle.parent / "bench.json"
    target.unlink(missing_ok=True)
    request = next((bundle / "golden").rglob("*.safetensors"))
    command = [
        programs / "trunnion-bench-bundle",
        server.grpc,
        "--model",
        model,
        "--request",
        request,
        "--json",
        target,
    ]
    times = () if "--seconds" in options else ("--seconds", "1")
    done = subprocess.run(
        [*map(str, command), "--warmup-seconds", "0.2", *times, *options], capture_output=True, text=True, timeout=60
    )
    return done, json.loads(target.read_text()) if target.exists() else {}


def test_figures_are_those_of_the_server(programs: Path, tmp_path: Path) -> None:
    bundle = write_echo(tmp_path / "echo", base_us=20_000, allowed_sizes=(16,))
    with serving(programs, bundle) as server:
        pid = str(server.process.pid)
        done, found = bench(programs, server, bundle, "--rows", "4", "--concurrency", "1,4", "--server-pid", pid)
        assert done.returncode == 0, done.stderr
        one, four = found["runs"]
        # 20 ms a batch: 50 a second, and four callers share batches.
        assert 20 < one["requests_per_second"] <= 51 and 20 <= one["p50_ms"] < 60
        assert four["requests_per_second"] > 1.5 * one["requests_per_second"]
        assert four["rows_per_second"] == 4 * four["requests_per_second"]
        assert found["best"]["4"] is None and found["p99_bound_ms"] == 20
        assert 0 < one["server_cpu_us_per_request"] < 20_000
        _, found = bench(programs, server, bundle, "--rows", "4", "--concurrency", "1,4", "--p99-ms", "500")
        assert found["best"]["4"]["concurrency"] == 4


def test_waits_count_from_the_planned_time(programs: Path, tmp_path: Path) -> None:
    bundle = write_echo(tmp_path / "echo", base_us=50_000, allowed_sizes=(1,), max_queue_rows=4096)
    with serving(programs, bundle) as server:
        # 40 a second on a server that does 20: a closed loop would see 50 ms, and this one a queue.
        done, found = bench(programs, server, bundle, "--rows", "1", "--rate", "40", "--seconds", "2")
        assert done.returncode == 0, done.stdout
        (run,) = found["runs"]
        assert run["p99_ms"] > 300 and run["requests_per_second"] < 25


def test_any_error_voids_a_run(programs: Path, tmp_path: Path) -> None:
    bundle = write_echo(tmp_path / "echo", base_us=50_000, allowed_sizes=(4,), max_queue_rows=4)
    with serving(programs, bundle) as server:
        done, found = bench(programs, server, bundle, "--rows", "4", "--concurrency", "16")
        (run,) = found["runs"]
        assert done.returncode == 1 and run["errors"] > 0
        assert "requests_per_second" not in run and "queue is full" in run["void"]
        assert found["best"]["4"] is None


def test_wrong_answers_are_no_answers(programs: Path, tmp_path: Path) -> None:
    bundle = write_echo(tmp_path / "echo")
    other = write_echo(tmp_path / "other" / "echo", offset=5)
    with serving(programs, other) as server:
        done, _ = bench(programs, server, bundle)
        assert done.returncode == 2 and "output y of 1 rows is not the golden one" in done.stderr


def test_a_server_that_is_gone_is_no_figure(programs: Path, tmp_path: Path) -> None:
    bundle = write_echo(tmp_path / "echo")
    with serving(programs, bundle) as server:
        assert server.stop() == 0
        done, found = bench(programs, server, bundle)
        assert done.returncode == 2 and not found


def test_a_process_that_is_not_there_costs_nothing_but_is_named(programs: Path, tmp_path: Path) -> None:
    bundle = write_echo(tmp_path / "echo")
    with serving(programs, bundle) as server:
        done, found = bench(programs, server, bundle, "--server-pid", "999999999")
    assert (done.returncode, found) == (2, {})
    assert "--server-pid is 999999999, there is no such process" in done.stderr
