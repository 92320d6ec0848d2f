"""The wheel of bundles: what it links and carries; a fresh environment exports, serves, is asked and drains with it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

import pytest

PROGRAMS = ("trunnion-serve-bundle", "trunnion-bench-bundle", "trunnion-compile-bundle")
LOADERS = {"linux-vdso", "ld-linux-x86-64", "ld-linux-aarch64"}
SYSTEM = LOADERS | {"libc", "libdl", "libgcc_s", "libm", "libpthread", "librt", "libstdc++"}
MOST_BYTES = 30 << 20
MISSED = r"lib(torch|c10)\S*: cannot open .*; it needs the Python package torch 2\.\d+\.\d+, beside"
EXPORT = ("bundle", "export", "trunnion_bundle.examples.dlrm:recipe")


def environment(**more: str) -> dict[str, str]:
    """Of a user: nothing of this process's Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "LD_"))}
    return {**kept, **more}


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=environment(), capture_output=True, text=True, timeout=280)


@dataclass
class Server:
    """A running server, its gRPC port and what it has written to standard error."""

    process: subprocess.Popen[str]
    port: int
    lines: list[str]

    def wait_for_line(self, pattern: str) -> str:
        """The first line that `pattern` is found in, which may come after the port."""
        end = time.monotonic() + 20
        while time.monotonic() < end:
            if found := next((line for line in list(self.lines) if re.search(pattern, line)), None):
                return found
            time.sleep(0.01)
        raise AssertionError(f"no line with {pattern!r}: {''.join(self.lines)}")


@contextmanager
def serving(command: list[object], cwd: Path, **variables: str) -> Iterator[Server]:
    words = [*map(str, command), "--grpc-port", "0", "--http-port", "0"]
    with subprocess.Popen(
        words, cwd=cwd, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(iter(process.stderr.readline, "")), daemon=True)
        reader.start()
        limit = threading.Timer(120, process.kill)
        limit.start()
        try:
            ports = process.stdout.readline()
            assert ports, f"the server did not start: {''.join(lines)}"
            yield Server(process, json.loads(ports)["grpc_port"], lines)
        finally:
            limit.cancel()
            process.kill()
            process.wait()
            reader.join(5)


@pytest.fixture(scope="module")
def repository(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny DLRM that the installed command has exported."""
    folder = tmp_path_factory.mktemp("repository")
    done = run(installed / "trunnion", *EXPORT, folder / "dlrm" / "1", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_checksums_cover_every_file(dist: Path) -> None:
    rows = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert set(rows) == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    for name, digest in rows.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest, name


def test_its_tag_says_which_linux(wheel: Path) -> None:
    assert re.search(r"-py3-none-(?:manylinux\w+\.)*manylinux_2_\d+_\w+\.whl$", wheel.name), wheel.name
    assert wheel.stat().st_size < MOST_BYTES


def test_it_carries_programs_engines_and_licences(wheel: Path) -> None:
    names = ZipFile(wheel).namelist()
    inside = {name.removeprefix("trunnion_bundle/bin/") for name in names if name.startswith("trunnion_bundle/bin/")}
    assert {*PROGRAMS, "engine_aoti.so", "engine_pjrt.so", "engine_sim.so", "engine_aoti.needs.txt"} <= inside
    assert {"licenses/cpp-httplib.txt", "licenses/libgrpc-dev.txt", "licenses/libssl-dev.txt"} <= inside
    assert not [name for name in names if re.search(r"(^|/)(tests?|bench)/|\.(cc|h|a|pyc)$|\.libs/", name)]


@pytest.mark.skipif(shutil.which("ldd") is None, reason="ldd is not installed")
@pytest.mark.parametrize("name", [*PROGRAMS, "engine_pjrt.so", "engine_sim.so"])
def test_it_links_only_what_every_linux_has(wheel: Path, tmp_path: Path, name: str) -> None:
    path = ZipFile(wheel).extract(f"trunnion_bundle/bin/{name}", tmp_path)
    linked = subprocess.run(("ldd", path), check=True, capture_output=True, text=True).stdout
    found = {Path(line.split()[0]).name.split(".so")[0] for line in linked.splitlines()}
    assert "libc" in found and found <= SYSTEM, linked


@pytest.mark.skipif(shutil.which("readelf") is None, reason="readelf is not installed")
def test_its_engine_looks_for_torch_beside_it(wheel: Path, tmp_path: Path) -> None:
    path = ZipFile(wheel).extract("trunnion_bundle/bin/engine_aoti.so", tmp_path)
    linked = subprocess.run(("readelf", "-d", path), check=True, capture_output=True, text=True).stdout
    assert re.findall(r"R(?:UN)?PATH.*\[(.*)\]", linked) == ["$ORIGIN/../../torch/lib"], linked
    assert "libpython" not in linked and "libtorch_cpu.so" in linked, linked


def test_pip_check(installed: Path, tmp_path: Path) -> None:
    result = run(installed / "python", "-m", "pip", "check", cwd=tmp_path)
    assert result.returncode == 0, result.stdout


def test_what_it_exported_is_served_asked_and_drained(installed: Path, repository: Path) -> None:
    with serving([installed / "trunnion", "bundle", "serve", repository], repository) as server:
        server.wait_for_line("model dlrm version 1 is served on cpu-")
        ask = ("-m", "trunnion_bundle.examples.ask", f"127.0.0.1:{server.port}", "--rows", "5")
        done = run(installed / "python", *ask, cwd=repository)
        assert done.returncode == 0, done.stderr
        scores = [float(word) for word in done.stdout.split()]
        assert scores == pytest.approx(reference(installed, repository), abs=2e-4)
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "engine_aoti.so" in maps and "libpython" not in maps
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0


def reference(installed: Path, cwd: Path) -> list[float]:
    """What the eager module answers to the same rows."""
    code = (
        "import torch; from trunnion_bundle.examples import dlrm; endpoint, = dlrm.recipe()['endpoints'].values();"
        "print(*endpoint.function(**dlrm.example(5)).tolist())"
    )
    done = run(installed / "python", "-c", code, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return [float(word) for word in done.stdout.split()]


def test_load_tool(installed: Path, repository: Path) -> None:
    with serving([installed / "trunnion", "bundle", "serve", repository], repository) as server:
        (request,) = list((repository / "dlrm" / "1" / "golden").rglob("0.safetensors"))[:1]
        options = ("--model", "dlrm", "--request", request, "--rows", "1", "--concurrency", "4", "--seconds", "1")
        done = run(installed / "trunnion", "bundle", "bench", f"127.0.0.1:{server.port}", *options, cwd=repository)
        assert done.returncode == 0 and "requests/s" in done.stdout, done.stdout + done.stderr


def test_a_torch_elsewhere_is_found_by_the_command_and_missed_by_name_without(
    installed: Path, repository: Path, tmp_path: Path
) -> None:
    site = next((installed.parent / "lib").glob("python*/site-packages"))
    # A copy of the package away from torch, as where one of the two is in a user's folder.
    shutil.copytree(site / "trunnion_bundle", tmp_path / "trunnion_bundle")
    program = tmp_path / "trunnion_bundle" / "bin" / "trunnion-serve-bundle"
    with serving([program, repository], tmp_path) as server:
        line = server.wait_for_line("could not be loaded")
        assert re.search(MISSED, line), line
    command = [installed / "python", "-m", "trunnion_bundle", "serve", repository]
    with serving(command, tmp_path, PYTHONPATH=str(tmp_path)) as server:
        server.wait_for_line("model dlrm version 1 is served")
