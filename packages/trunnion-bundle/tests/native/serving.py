"""Bundles for the simulated device, and servers of them that end with the test."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trunnion_bundle import folder
from trunnion_bundle.contract import Bundle, Producer
from trunnion_bundle.examples import sim
from trunnion_bundle.lowerings import SimLowering, SimModule, SimOutput
from trunnion_bundle.policy import Batching
from trunnion_bundle.requests import write
from trunnion_bundle.signatures import Module, Signature
from trunnion_bundle.steps import Step
from trunnion_bundle.tensors import Pad, Tensor, Tolerance

START_SECONDS = 60


@dataclass
class Server:
    """A running server, its ports and what it wrote to standard error."""

    process: subprocess.Popen[str]
    grpc: str
    http: str
    lines: list[str] = field(default_factory=list)

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=10) as answer:
            return answer.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all series of `name` that have `labels`."""
        total = 0.0
        for line in self.get("/metrics").splitlines():
            series, _, value = line.rpartition(" ")
            if series.split("{")[0] == name and all(f'{key}="{text}"' in series for key, text in labels.items()):
                total += float(value)
        return total

    def wait_for_line(self, text: str, seconds: float = 20) -> str:
        return wait_for(lambda: next((line for line in list(self.lines) if text in line), ""), seconds, text)

    def stop(self, seconds: float = 30) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(seconds)


def wait_for(condition: Any, seconds: float, what: str) -> Any:
    """The first true value of `condition`, or a failure that names `what`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"{what}: not within {seconds} s")


@contextmanager
def serving(
    programs: Path, repository: Path, *options: str, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """A server of `repository` that looks for new versions often."""
    command = [str(programs / "trunnion-serve-bundle"), str(repository), "--grpc-port", "0", "--http-port", "0"]
    poll = () if "--poll-ms" in options else ("--poll-ms", "50")
    process = subprocess.Popen(
        [*command, *poll, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")), daemon=True)
    reader.start()
    limit = threading.Timer(START_SECONDS, process.kill)
    limit.start()
    try:
        ports = process.stdout.readline()
        limit.cancel()
        assert ports, f"the server did not start: {''.join(lines)}"
        found = json.loads(ports)
        yield Server(process, f"127.0.0.1:{found['grpc_port']}", f"127.0.0.1:{found['http_port']}", lines)
    finally:
        limit.cancel()
        _end(process)
        reader.join(5)
        process.stdout.close()
        process.stderr.close()


def _end(process: subprocess.Popen[str]) -> None:
    """As a user ends it, so that leaks are looked for; one that does not answer any more is killed."""
    process.terminate()
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def write_sim(target: Path, **batching: Any) -> Path:
    """The example bundle for the simulated device with another policy."""
    sim.write(target, batching=Batching(**{"allowed_sizes": sim.ALLOWED, **batching}))
    return target


def write_echo(target: Path, *, base_us: int = 1000, row_us: int = 0, offset: float = 0, **batching: Any) -> Path:
    """A bundle of one signature `x FP32 [batch, 2] -> y = offset + sum(x)`, as slow as is said."""
    dims: tuple[str | int, ...] = ("batch", 2)
    x = Tensor(name="x", dtype="FP32", dims=dims)
    y = Tensor(name="y", dtype="FP32", dims=("batch",), tolerance=Tolerance(absolute=1e-5, relative=1e-5))
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    answers = (offset + rows.sum(axis=1)).astype(np.float32)
    write(target / "warmup/sum/0.safetensors", {"input": {"x": rows}})
    write(target / "golden/sum/0.safetensors", {"input": {"x": rows}, "output": {"y": answers}})
    signature = Signature(
        inputs=(x,),
        outputs=(y,),
        steps=(Step(op="module", inputs=("x",), outputs=("y",), parameters={"module": "main"}),),
        batching=Batching(**{"allowed_sizes": (1, 4, 16, 64), "padding": "pad_up", **batching}),
        symbols={},
        warmup=("warmup/sum/0.safetensors",),
        golden=("golden/sum/0.safetensors",),
    )
    module = Module(
        inputs=(Tensor(name="x", dtype="FP32", dims=dims, pad=Pad(rule="zero")),),
        outputs=(Tensor(name="y", dtype="FP32", dims=("batch",)),),
        largest_batch=1024,
    )
    output = SimOutput(function="row_sum", input="x", scale=1, offset=offset)
    bundle = Bundle(
        name="echo",
        producer=Producer(framework="none", framework_version="", tool_version="0"),
        modules={"main": module},
        signatures={"sum": signature},
        default_signature="sum",
        lowerings={"sim": SimLowering(modules={"main": SimModule(base_us=base_us, row_us=row_us, outputs=(output,))})},
        files=folder.facts_of(target),
    )
    folder.commit_new(target, bundle)
    return target
