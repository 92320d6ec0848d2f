"""Recorded requests asked of two servers: equal within the tolerances of the bundle, or exit code 1 and the first."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from serving import Server, serving, wait_for, write_echo, write_sim
from tritonclient.utils import InferenceServerException


def shadow(programs: Path, server: str, other: str, recorded: Path, bundle: Path) -> tuple[int, dict[str, Any], str]:
    """Exit code, the summary, and what was printed."""
    target = recorded.with_suffix(".json")
    target.unlink(missing_ok=True)
    options = ["--shadow", other, "--recorded", recorded, "--bundle", bundle, "--json", target]
    command = [str(word) for word in (programs / "trunnion-bench-bundle", server, *options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(target.read_text()) if target.exists() else {}, done.stdout + done.stderr


def ask(server: Server, x: np.ndarray, model: str = "echo") -> np.ndarray:
    given = triton.InferInput("x", list(x.shape), "FP32")
    given.set_data_from_numpy(x)
    return triton.InferenceServerClient(server.grpc).infer(model, [given]).as_numpy("y")


@pytest.fixture
def recorded(programs: Path, tmp_path: Path) -> Any:
    """A server of echo, the file of the three requests that it was asked, and its bundle."""
    bundle, file = write_echo(tmp_path / "echo"), tmp_path / "requests"
    with serving(programs, bundle, "--record", str(file)) as server:
        ask(server, np.ones((2, 2), np.float32))
        body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [7, 8]}]}
        url = f"http://{server.http}/v2/models/echo/infer"
        urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode()), timeout=10).read()
        with pytest.raises(InferenceServerException):
            ask(server, np.ones((2, 3), np.float32))
        yield server, file, bundle


def test_equal_answers(programs: Path, recorded: Any) -> None:
    server, file, bundle = recorded
    with serving(programs, bundle) as other:
        code, found, text = shadow(programs, server.grpc, other.grpc, file, bundle)
    assert code == 0, text
    assert found == {"requests": 3, "different": 0, "refused_by_both": 1, "first": None}
    assert "3 requests, 0 different, 1 refused by both" in text


@pytest.mark.parametrize(("offset", "is_equal"), [(2e-6, True), (0.5, False)])
def test_the_tolerance_is_the_bundles(
    programs: Path, recorded: Any, tmp_path: Path, offset: float, is_equal: bool
) -> None:
    server, file, bundle = recorded
    with serving(programs, write_echo(tmp_path / "other" / "echo" / "1", offset=offset).parents[1]) as other:
        code, found, text = shadow(programs, server.grpc, other.grpc, file, bundle)
    assert code == (0 if is_equal else 1), text
    if is_equal:
        return
    assert found["different"] == 2 and found["first"]["request"] == 0
    assert found["first"]["shapes"] == {"x": [2, 2]}
    assert "output y at element 0 is 2.5" in found["first"]["difference"]
    assert "the reference says 2.0" in found["first"]["difference"]
    assert "first: request" in text


def test_an_answer_that_only_one_gives_is_a_difference(programs: Path, recorded: Any, tmp_path: Path) -> None:
    server, file, bundle = recorded
    other_bundle = write_sim(tmp_path / "repository" / "other" / "1")
    with serving(programs, other_bundle.parents[1]) as other:
        code, found, _ = shadow(programs, server.grpc, other.grpc, file, bundle)
    assert code == 1 and found["different"] == 3
    assert "the shadow answers 5: model echo is not served, the reference OK" in found["first"]["difference"]


def test_servers_that_do_not_answer_are_not_equal(programs: Path, recorded: Any) -> None:
    server, file, bundle = recorded
    nobody = "127.0.0.1:1"
    code, found, _ = shadow(programs, nobody, nobody, file, bundle)
    assert (code, found["different"], found["refused_by_both"]) == (1, 3, 0)
    assert "neither answers: the reference 14" in found["first"]["difference"]
    with answering_nothing() as empty:
        code, found, _ = shadow(programs, empty, empty, file, bundle)
    assert (code, found["different"]) == (1, 3)
    assert "no output y of dtype FP32" in found["first"]["difference"]
    assert server.process.poll() is None


@contextmanager
def answering_nothing() -> Iterator[str]:
    """Where a server answers every call with an empty message."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler})]
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_requests_that_both_refuse_compare_nothing(programs: Path, recorded: Any, tmp_path: Path) -> None:
    _, file, bundle = recorded
    other_bundle = write_sim(tmp_path / "repository" / "other" / "1")
    with serving(programs, other_bundle.parents[1]) as other:
        code, found, text = shadow(programs, other.grpc, other.grpc, file, bundle)
    assert (code, found) == (2, {}) and "both servers refuse all 3 requests" in text


def test_a_file_that_takes_no_more_requests_is_said_once(programs: Path, tmp_path: Path) -> None:
    with serving(programs, write_echo(tmp_path / "echo"), "--record", "/dev/full") as server:
        for _ in range(3):
            ask(server, np.ones((1, 2), np.float32))
        server.wait_for_line("/dev/full cannot be written")
        assert sum("cannot be written" in line for line in server.lines) == 1


def test_a_summary_that_cannot_be_written_is_an_error(programs: Path, recorded: Any, tmp_path: Path) -> None:
    server, file, bundle = recorded
    words = ("--shadow", server.grpc, "--recorded", file, "--bundle", bundle, "--json", tmp_path / "none" / "x.json")
    command = [str(word) for word in (programs / "trunnion-bench-bundle", server.grpc, *words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "x.json cannot be written" in done.stderr


def test_as_many_are_recorded_as_were_asked_for(programs: Path, tmp_path: Path) -> None:
    bundle, file = write_echo(tmp_path / "echo"), tmp_path / "requests"
    with serving(programs, bundle, "--record", str(file), "--record-limit", "2") as server:
        for _ in range(5):
            ask(server, np.ones((1, 2), np.float32))
        code, found, _ = shadow(programs, server.grpc, server.grpc, file, bundle)
        assert (code, found["requests"]) == (0, 2)
        wait_for(lambda: file.stat().st_size > 0, 5, "the file")
        file.write_bytes(file.read_bytes()[:-3])
        code, _, text = shadow(programs, server.grpc, server.grpc, file, bundle)
        assert code == 2 and "request 1 is cut" in text
        file.write_bytes(b"")
        code, _, text = shadow(programs, server.grpc, server.grpc, file, bundle)
        assert code == 2 and "has no requests" in text
