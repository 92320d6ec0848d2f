"""Versions come and go under load: verified, warm, swapped in, the old drained; what fails leaves the old in place."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from serving import Server, serving, wait_for, write_echo, write_sim
from tritonclient.utils import InferenceServerException

from trunnion_bundle import edits


def ask(client: triton.InferenceServerClient, value: float = 1, **options: object) -> float:
    """What the server answers to one row of `value`, 0."""
    tensor = triton.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[value, 0]], np.float32))
    return float(client.infer("echo", [tensor], **options).as_numpy("y")[0])


@contextmanager
def load(server: Server, threads: int = 4) -> Iterator[Counter[float | str]]:
    """Requests as fast as they are answered meanwhile; how often each answer, or error, came."""
    answers: Counter[float | str] = Counter()
    stop = threading.Event()

    def run() -> None:
        client = triton.InferenceServerClient(server.grpc)
        while not stop.is_set():
            try:
                answers[ask(client)] += 1
            except InferenceServerException as error:
                answers[str(error)] += 1

    running = [threading.Thread(target=run) for _ in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield answers
    finally:
        stop.set()
        for thread in running:
            thread.join()


def copy_slowly(source: Path, target: Path, order: Callable[[Path], object], pause: float = 0.02) -> None:
    """File by file, each half by half; but COMMITTED appears whole where it is the last, as its writers see to."""
    for path in sorted((path for path in source.rglob("*") if path.is_file()), key=order):
        to = target / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_bytes()
        if path.name == "COMMITTED" and order(path):
            (target.parent.parent / "whole").write_bytes(content)
            (target.parent.parent / "whole").rename(to)
            continue
        with to.open("wb") as file:
            for half in (content[: len(content) // 2], content[len(content) // 2 :]):
                file.write(half)
                file.flush()
                time.sleep(pause)


@pytest.mark.parametrize("is_last", [True, False], ids=["committed-last", "committed-first"])
def test_a_version_that_is_copied_slowly_under_load(programs: Path, tmp_path: Path, is_last: bool) -> None:
    repository = tmp_path / "repository"
    write_echo(repository / "echo" / "1")
    new = write_echo(tmp_path / "new", offset=100)
    with serving(programs, repository) as server, load(server) as answers:
        wait_for(lambda: answers[1] > 20, 20, "answers of version 1")
        copy_slowly(new, repository / "echo" / "2", lambda path: (path.name == "COMMITTED") == is_last)
        server.wait_for_line("model echo version 2 is served")
        count = answers[101]
        wait_for(lambda: answers[101] > count + 20, 20, "answers of version 2")
    assert set(answers) == {1, 101}, answers
    # A copier that puts COMMITTED first makes the server try; it serves nothing half, and comes back.
    assert is_last <= (not any("could not be loaded" in line for line in server.lines))


def flip_a_bit(folder: Path) -> None:
    path = folder / "golden" / "sum" / "0.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def link_a_file(folder: Path) -> None:
    path = folder / "golden" / "sum" / "0.safetensors"
    path.rename(folder.parent / "elsewhere")
    path.symlink_to(folder.parent / "elsewhere")


def edit_contract(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """bundle.json with another content, and a COMMITTED that vouches for it."""

    def edit(folder: Path) -> None:
        from hashlib import sha256

        contract = json.loads((folder / "bundle.json").read_text())
        change(contract)
        text = json.dumps(contract, sort_keys=True, indent=2) + "\n"
        (folder / "bundle.json").write_text(text)
        committed = json.loads((folder / "COMMITTED").read_text())
        committed["bundle_sha256"] = sha256(text.encode()).hexdigest()
        (folder / "COMMITTED").write_text(json.dumps(committed, sort_keys=True, indent=2) + "\n")

    return edit


def listed_outside(contract: dict) -> None:
    contract["files"]["../secret"] = contract["files"].pop("golden/sum/0.safetensors")


def batching(contract: dict) -> dict:
    return contract["signatures"]["sum"]["batching"]


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "bit-flipped": (flip_a_bit, "has SHA-256"),
    "file-cut": (lambda f: (f / "warmup/sum/0.safetensors").write_bytes(b"x"), "has 1 bytes, bundle.json says"),
    "file-gone": (lambda f: (f / "warmup/sum/0.safetensors").unlink(), "is not there"),
    "file-not-listed": (lambda f: (f / "more").write_text("x"), "more is not listed in files"),
    "folder-not-listed": (lambda f: (f / "more").mkdir(), "more is a folder without a listed file"),
    "link": (link_a_file, "is a symbolic link"),
    "history-changed": (lambda f: (f / "history.jsonl").write_text("{}\n"), "history.jsonl has SHA-256"),
    "contract-changed": (lambda f: (f / "bundle.json").write_text("{}\n"), "bundle.json has SHA-256"),
    "committed-empty": (lambda f: (f / "COMMITTED").write_text(""), "COMMITTED: is not JSON"),
    "path-outside": (edit_contract(listed_outside), 'path "../secret", which may lead out of the bundle'),
    "version-of-the-format": (edit_contract(lambda c: c.update(format_version=2)), "format_version is 2, expected 1"),
    "key-unknown": (edit_contract(lambda c: c.update(more=1)), 'unknown key "more"; keys: '),
    "key-missing": (edit_contract(lambda c: c.pop("weights")), 'has no "weights"'),
    "sizes-descend": (edit_contract(lambda c: batching(c).update(allowed_sizes=[4, 2])), r"allowed_sizes[1] is 2"),
    "queue-too-short": (edit_contract(lambda c: batching(c).update(max_queue_rows=3)), "max_queue_rows is 3"),
    "operator-unknown": (
        edit_contract(lambda c: c["signatures"]["sum"]["steps"][0].update(op="run_shell")),
        'op is "run_shell", expected one of module, cast',
    ),
    "platform-of-another-machine": (
        edit_contract(lambda c: c["lowerings"].update(sim={"engine": "none", "modules": {}})),
        'engine is "none", expected one of aoti, pjrt, sim',
    ),
    "warm-up-fails": (
        edit_contract(lambda c: c["lowerings"]["sim"]["modules"]["main"]["outputs"][0].update(input="z")),
        "its warm-up failed: engine sim: the module has no input z",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_version_leaves_the_old_in_place(programs: Path, tmp_path: Path, name: str) -> None:
    spoil, text = BROKEN[name]
    repository = tmp_path / "repository"
    write_echo(repository / "echo" / "1")
    spoil(write_echo(tmp_path / "2", offset=100))
    with serving(programs, repository) as server:
        (tmp_path / "2").rename(repository / "echo" / "2")
        line = server.wait_for_line("version 2 could not be loaded")
        assert text in line, line
        client = triton.InferenceServerClient(server.grpc)
        assert ask(client) == 1
        (failed,) = [m for m in client.get_model_repository_index().models if m.state == "UNAVAILABLE"]
        assert (failed.name, failed.version) == ("echo", "2") and text in failed.reason
        # Tried once, and not again while nothing changes.
        time.sleep(0.3)
        assert server.metric("bundle_loads_total", result="failed") == 1
        shutil.rmtree(repository / "echo" / "2")
        write_echo(tmp_path / "good", offset=100).rename(repository / "echo" / "2")
        wait_for(lambda: ask(client) == 101, 20, "the mended version")


def test_a_folder_without_committed_is_not_looked_at(programs: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_echo(repository / "echo" / "1")
    write_echo(repository / "echo" / "2", offset=100)
    (repository / "echo" / "2" / "COMMITTED").unlink()
    with serving(programs, repository) as server:
        time.sleep(0.3)
        assert ask(triton.InferenceServerClient(server.grpc)) == 1
        assert not any("version 2" in line for line in server.lines)


def test_an_older_version_stands_in_when_the_newest_is_broken_at_start(programs: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_echo(repository / "echo" / "1")
    flip_a_bit(write_echo(repository / "echo" / "2", offset=100))
    with serving(programs, repository) as server:
        assert ask(triton.InferenceServerClient(server.grpc)) == 1


def test_a_policy_that_is_set_in_place_is_taken_up(programs: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    target = write_echo(repository / "echo" / "1")
    with serving(programs, repository) as server, load(server) as answers:
        wait_for(lambda: answers[1] > 20, 20, "answers")
        edits.set_policy(target, {"sum": {"allowed_sizes": [4]}})
        wait_for(lambda: server.metric("bundle_loads_total", result="ok") == 2, 20, "the edited bundle")
        wait_for(lambda: server.metric("bundle_batches_total", size="4") > 5, 20, "batches of 4")
    assert set(answers) == {1}, answers


def test_sigterm_waits_for_a_version_that_was_replaced(programs: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_echo(repository / "echo" / "1", base_us=1_000_000, allowed_sizes=(1,))
    new = write_echo(tmp_path / "new", offset=100)
    with serving(programs, repository) as server, ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, triton.InferenceServerClient(server.grpc)) for _ in range(4)]
        wait_for(lambda: server.metric("bundle_queue_rows") == 3, 5, "a queue")
        new.rename(repository / "echo" / "2")
        server.wait_for_line("model echo version 2 is served")
        assert server.stop() == 0
        assert [answer.result() for answer in asked] == [1] * 4


def test_models_are_loaded_and_unloaded_on_request(programs: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    write_echo(repository / "echo" / "1")
    write_sim(repository / "sim" / "3")
    with serving(programs, repository, "--poll-ms", "0") as server:
        client = triton.InferenceServerClient(server.grpc)
        assert {(m.name, m.version) for m in client.get_model_repository_index().models} == {
            ("echo", "1"),
            ("sim", "3"),
        }
        write_echo(repository / "echo" / "2", offset=100)
        time.sleep(0.2)
        assert ask(client) == 1
        client.load_model("echo")
        assert ask(client) == 101 and ask(client, model_version="2") == 101
        with pytest.raises(InferenceServerException, match="version 1 is not served"):
            ask(client, model_version="1")
        client.unload_model("echo")
        with pytest.raises(InferenceServerException, match="not served"):
            ask(client)
        with pytest.raises(InferenceServerException, match="no committed version of none"):
            client.load_model("none")
        client.load_model("echo")
        assert ask(client) == 101


def test_one_bundle_is_served_under_the_name_of_its_folder(programs: Path, tmp_path: Path) -> None:
    with serving(programs, write_echo(tmp_path / "echo")) as server:
        assert ask(triton.InferenceServerClient(server.grpc)) == 1


def test_folders_that_are_no_models_are_passed_over(programs: Path, tmp_path: Path) -> None:
    for name in ("echo", ".hidden", "a:b", 'quo"te', "two words"):
        write_echo(tmp_path / name / "1")
    write_echo(tmp_path / "versions" / "01")
    write_echo(tmp_path / "versions" / "latest")
    (tmp_path / "file").write_text("no folder")
    with serving(programs, tmp_path) as server:
        client = triton.InferenceServerClient(server.grpc)
        assert [model.name for model in client.get_model_repository_index().models] == ["echo"]
        shutil.rmtree(tmp_path / "two words")
        assert ask(client) == 1
