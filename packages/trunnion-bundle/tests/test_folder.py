"""A folder is a bundle when COMMITTED says so, and then byte for byte."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trunnion_bundle import BundleError, edits, folder

GOLDEN = "golden/score/0.safetensors"


def _refused(path: Path, **options: Any) -> str:
    with pytest.raises(BundleError) as error:
        folder.read(path, **options)
    return str(error.value)


def test_hashes_are_those_of_sha256sum(sim_bundle: Path) -> None:
    contract = json.loads((sim_bundle / "bundle.json").read_text())
    committed = json.loads((sim_bundle / "COMMITTED").read_text())
    wanted = {path: fact["sha256"] for path, fact in contract["files"].items()}
    wanted |= {"bundle.json": committed["bundle_sha256"], "history.jsonl": committed["history_sha256"]}
    for path, digest in wanted.items():
        found = subprocess.run(["sha256sum", sim_bundle / path], check=True, capture_output=True, text=True).stdout
        assert found.split()[0] == digest


def test_refuses_what_is_not_committed(sim_bundle: Path) -> None:
    (sim_bundle / "COMMITTED").unlink()
    assert "no COMMITTED" in _refused(sim_bundle)
    assert "no such folder" in _refused(sim_bundle / "other")


@pytest.mark.parametrize("name", ["bundle.json", "history.jsonl", GOLDEN])
def test_refuses_a_changed_byte(sim_bundle: Path, name: str) -> None:
    data = bytearray((sim_bundle / name).read_bytes())
    data[-2] ^= 1
    (sim_bundle / name).write_bytes(data)
    assert f"{name}: SHA-256 is" in _refused(sim_bundle)


def test_sizes_alone_are_compared_on_request(sim_bundle: Path) -> None:
    data = bytearray((sim_bundle / GOLDEN).read_bytes())
    data[-1] ^= 1
    (sim_bundle / GOLDEN).write_bytes(data)
    folder.read(sim_bundle, hashes=False)
    (sim_bundle / GOLDEN).write_bytes(bytes(data) + b"x")
    assert "bytes; bundle.json says" in _refused(sim_bundle, hashes=False)


def test_refuses_files_that_are_not_listed(sim_bundle: Path) -> None:
    (sim_bundle / "notes.txt").write_text("hello")
    assert "not listed in bundle.json: notes.txt" in _refused(sim_bundle)
    (sim_bundle / "notes.txt").unlink()
    (sim_bundle / ".hidden").write_text("hello")
    assert "'.hidden' must match" in _refused(sim_bundle)
    (sim_bundle / ".hidden").unlink()
    (sim_bundle / "assets").mkdir()
    assert "an empty folder" in _refused(sim_bundle)


def test_refuses_files_that_are_gone(sim_bundle: Path) -> None:
    (sim_bundle / GOLDEN).unlink()
    (sim_bundle / "golden/score").rmdir()
    assert "listed in bundle.json, and not there" in _refused(sim_bundle)


@pytest.mark.parametrize("kind", ["file", "folder", "itself"])
def test_refuses_symbolic_links(sim_bundle: Path, tmp_path: Path, kind: str) -> None:
    name = {"file": GOLDEN, "folder": "golden", "itself": "COMMITTED"}[kind]
    target = tmp_path / "elsewhere"
    shutil.move(sim_bundle / name, target)
    (sim_bundle / name).symlink_to(target)
    assert "is a symbolic link" in _refused(sim_bundle)


def test_refuses_a_pipe(sim_bundle: Path) -> None:
    (sim_bundle / GOLDEN).unlink()
    os.mkfifo(sim_bundle / GOLDEN)
    assert "is no regular file" in _refused(sim_bundle)


def test_a_version_is_written_once(sim_bundle: Path) -> None:
    opened = folder.read(sim_bundle)
    with pytest.raises(BundleError, match="is committed"):
        folder.commit_new(sim_bundle, opened.bundle)


class _Interrupted(Exception):
    """The process ends here."""


@pytest.mark.parametrize("steps", range(4))
def test_an_edit_that_was_interrupted(sim_bundle: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """After `steps` of the three files are replaced there is no COMMITTED; the next edit goes on from what is there."""
    before = folder.read(sim_bundle)
    replace, done = folder._replace, []

    def failing(path: Path, name: str, data: bytes) -> None:
        if len(done) == steps:
            (path / f".{name}.tmp").write_bytes(data[:10])
            raise _Interrupted
        done.append(name)
        replace(path, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(folder, "_replace", failing)
        if steps < 3:
            with pytest.raises(_Interrupted):
                edits.set_policy(sim_bundle, {"score": {"max_delay_us": 1}})
            assert "no COMMITTED" in _refused(sim_bundle)
        else:
            edits.set_policy(sim_bundle, {"score": {"max_delay_us": 1}})
    edits.set_policy(sim_bundle, {"total": {"max_delay_us": 2}})
    after = folder.read(sim_bundle)
    # bundle.json is the second file: the first change is there if it was replaced.
    is_kept = steps >= 2
    assert after.bundle.signatures["score"].batching.max_delay_us == (1 if is_kept else 0)
    assert after.bundle.signatures["total"].batching.max_delay_us == 2
    assert [entry.action for entry in after.entries] == ["export", *(["set"] if is_kept else []), "set"]
    assert after.bundle.files == before.bundle.files
