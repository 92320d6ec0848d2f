"""Changes of the policy, their history, and the way back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from trunnion_bundle import BundleError, edits, folder, history


def test_set_touches_no_file_but_three(sim_bundle: Path) -> None:
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in sim_bundle.rglob("*") if path.is_file()}
    opened = edits.set_policy(sim_bundle, {"score": {"allowed_sizes": [2, 4], "bypass_rows": 4}}, note="smaller")
    changed = {path.name for path, facts in before.items() if (path.stat().st_mtime_ns, path.stat().st_ino) != facts}
    assert changed == {"bundle.json", "history.jsonl", "COMMITTED"}
    assert folder.read(sim_bundle) == opened
    assert opened.bundle.signatures["score"].batching.allowed_sizes == (2, 4)
    assert opened.bundle.signatures["total"].batching.allowed_sizes == (1, 8, 32, 128, 256)


def test_lines_are_a_chain(sim_bundle: Path) -> None:
    for delay in (1, 2):
        edits.set_policy(sim_bundle, {"score": {"max_delay_us": delay}})
    lines = (sim_bundle / "history.jsonl").read_bytes().splitlines()
    previous = "0" * 64
    for number, line in enumerate(lines, 1):
        entry = json.loads(line)
        assert (entry["sequence"], entry["previous"]) == (number, previous)
        previous = hashlib.sha256(line).hexdigest()
    assert (
        json.loads(lines[-1])["bundle_sha256"] == hashlib.sha256((sim_bundle / "bundle.json").read_bytes()).hexdigest()
    )
    assert folder.read(sim_bundle).entries[-1].hash == previous


def test_rollback_restores_by_hash(sim_bundle: Path) -> None:
    first = folder.read(sim_bundle).entries[-1].hash
    edits.set_policy(sim_bundle, {"score": {"max_delay_us": 7}, "total": {"padding": "batch_down"}})
    opened = edits.rollback(sim_bundle, first[:8])
    assert opened.bundle.signatures["score"].batching.max_delay_us == 0
    assert opened.bundle.signatures["total"].batching.padding == "least_cost"
    assert [entry.action for entry in folder.read(sim_bundle).entries] == ["export", "set", "rollback"]


@pytest.mark.parametrize("prefix", ["ffffffffffff", "12345", ""])
def test_rollback_to_nothing(sim_bundle: Path, prefix: str) -> None:
    with pytest.raises(BundleError, match=r"names 0 entries.*choices: "):
        edits.rollback(sim_bundle, prefix)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"other": {"max_delay_us": 1}}, "unknown signature 'other'; choices: score, total"),
        ({"score": {"delay": 1}}, "score: unknown 'delay'; choices: mode, allowed_sizes"),
        ({"score": {"allowed_sizes": [2048]}}, "2048; it must be an integer from 1 to 1024"),
    ],
)
def test_set_refuses(sim_bundle: Path, changes: dict, words: str) -> None:
    before = (sim_bundle / "bundle.json").read_bytes()
    with pytest.raises(BundleError) as error:
        edits.set_policy(sim_bundle, changes)
    assert words in str(error.value)
    assert (sim_bundle / "bundle.json").read_bytes() == before
    folder.read(sim_bundle)


@pytest.mark.parametrize("damage", ["note", "order", "cut", "unsorted"])
def test_a_changed_history_is_noticed(sim_bundle: Path, damage: str) -> None:
    for delay in (1, 2):
        edits.set_policy(sim_bundle, {"score": {"max_delay_us": delay}}, note="why")
    data = (sim_bundle / "history.jsonl").read_bytes()
    lines = data.splitlines(keepends=True)
    changed = {
        "note": data.replace(b'"note":"why"', b'"note":"who"', 1),
        "order": b"".join([lines[1], lines[0], lines[2]]),
        "cut": data[:-1],
        "unsorted": data.replace(b'{"action"', b'{ "action"', 1),
    }[damage]
    assert changed != data
    with pytest.raises(BundleError):
        history.decode(changed)
