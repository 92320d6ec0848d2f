"""Bundles that tests share, and ways to write one by the standard library alone."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trunnion_bundle
from trunnion_bundle.examples import sim


def pytest_addoption(parser: pytest.Parser) -> None:
    choices = ("address", "thread")
    parser.addoption("--sanitize", choices=choices, help="build the C++ with this sanitizer, whose reports fail tests")
    parser.addoption("--soak-seconds", type=float, default=6, help="how long the soak lasts (default: 6)")


@pytest.fixture(scope="session")
def sim_original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated device's bundle; nobody changes it."""
    folder = tmp_path_factory.mktemp("sim") / "1"
    sim.write(folder)
    return folder


@pytest.fixture
def sim_bundle(sim_original: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(sim_original, tmp_path / "sim"))


@pytest.fixture
def sim_contract(sim_original: Path) -> dict[str, Any]:
    """bundle.json as values of JSON, to be changed."""
    return copy.deepcopy(json.loads((sim_original / "bundle.json").read_text()))


Commit = Callable[[Path, dict[str, Any]], None]


@pytest.fixture
def commit() -> Commit:
    """Writes bundle.json, history.jsonl and COMMITTED as docs/format.md says, without the code under test."""
    return commit_by_hand


def commit_by_hand(folder: Path, contract: dict[str, Any]) -> None:
    data = (json.dumps(contract, sort_keys=True, ensure_ascii=False, indent=2) + "\n").encode()
    digest = hashlib.sha256(data).hexdigest()
    entry = {
        "sequence": 1, "previous": "0" * 64, "time": "2026-01-31T23:59:59Z", "action": "export", "note": "",
        "bundle_sha256": digest, "policy": {},
    }  # fmt: skip
    line = json.dumps(entry, sort_keys=True, separators=(",", ":")).encode() + b"\n"
    committed = {"format_version": 1, "bundle_sha256": digest, "history_sha256": hashlib.sha256(line).hexdigest()}
    (folder / "bundle.json").write_bytes(data)
    (folder / "history.jsonl").write_bytes(line)
    (folder / "COMMITTED").write_text(json.dumps(committed, sort_keys=True, indent=2) + "\n")


@pytest.fixture(scope="session")
def dlrm_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny ranker, compiled; nobody changes it."""
    from trunnion_bundle.examples import dlrm

    folder = tmp_path_factory.mktemp("dlrm") / "1"
    trunnion_bundle.save(folder, **dlrm.recipe())
    return folder
