"""`check` finds what makes a served answer wrong: each fault is planted in a bundle of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import trunnion_bundle
from trunnion_bundle import Batching, Endpoint, Input, Pad, folder
from trunnion_bundle.check import Finding, check
from trunnion_bundle.compare import difference
from trunnion_bundle.requests import read, write
from trunnion_bundle.signatures import Signature

FAULTS: dict[str, tuple[Callable[..., Any], dict[str, Any], str]] = {
    "rows are centred on their mean": (lambda x: x - x.mean(0), {}, "full batch"),
    "rows see the row before": (lambda x: x + 0.01 * jnp.roll(x, 1, 0), {}, "full batch"),
    "a sum over rows that cancels in full batches": (
        lambda x: x + 0.01 * jnp.sum(x == 7),
        {"pad": Pad(rule="value", value=7)},
        "padding",
    ),
    "NaN of a neighbour spreads": (lambda x: x + 0 * x.sum(), {}, "neighbours"),
}


def failed(found: list[Finding]) -> set[str]:
    return {finding.what for finding in found if finding.state == "failed"}


def export(path: Path, function: Callable[..., Any], **options: Any) -> None:
    x = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    endpoint = Endpoint(
        function=function,
        inputs={"x": Input(example=x, **options)},
        outputs=("y",),
        batching=Batching(allowed_sizes=(1, 4)),
    )
    trunnion_bundle.save(path, endpoint, name="fault", platforms=["cpu"])


@pytest.mark.parametrize("name", FAULTS)
def test_rows_that_know_one_another(name: str, tmp_path: Path) -> None:
    function, options, what = FAULTS[name]
    export(tmp_path / "1", function, **options)
    assert what in failed(check(tmp_path / "1"))


def test_the_same_without_a_fault(tmp_path: Path) -> None:
    export(tmp_path / "1", lambda x: x * 2)
    assert failed(check(tmp_path / "1")) == set()


def _recommit(path: Path, contract: dict[str, Any], commit: Callable[..., None]) -> None:
    for name in contract["files"]:
        fact = folder.facts_of(path)[name]
        contract["files"][name] = {"sha256": fact.sha256, "size": fact.size}
    commit(path, contract)


def test_a_wrong_golden_answer(sim_bundle: Path, sim_contract: dict[str, Any], commit: Callable[..., None]) -> None:
    signature = folder.read(sim_bundle).bundle.signatures["score"]
    path = sim_bundle / signature.golden[0]
    values, answers = read(path, "input", signature.inputs), read(path, "output", signature.outputs)
    answers["y"] = answers["y"].copy()
    answers["y"][2] += 0.01
    write(path, {"input": values, "output": answers})
    _recommit(sim_bundle, sim_contract, commit)
    found = check(sim_bundle)
    assert "golden" in failed(found)
    assert any("at [2]; wanted: " in finding.reason for finding in found)


def test_a_tensor_that_is_missing_or_unused(tmp_path: Path, commit: Callable[..., None]) -> None:
    from safetensors.numpy import load_file, save_file

    endpoint = Endpoint(
        function=lambda params, x: x * params["w"], params={"w": np.full(3, 2, np.float32)},
        inputs={"x": Input(example=np.ones((2, 3), np.float32))}, outputs=("y",),
        batching=Batching(allowed_sizes=(1, 2)),
    )  # fmt: skip
    path = tmp_path / "1"
    trunnion_bundle.save(path, endpoint, name="weights", platforms=["cpu"])
    contract = json.loads((path / "bundle.json").read_text())
    weights = load_file(path / "weights.safetensors")
    save_file({**weights, "extra": np.ones(1, np.float32)}, path / "weights.safetensors")
    _recommit(path, contract, commit)
    assert any("used by nothing: extra" in finding.reason for finding in check(path))
    save_file({"v": weights["w"]}, path / "weights.safetensors")
    _recommit(path, contract, commit)
    found = check(path)
    assert any("not in the checkpoint: w" in finding.reason for finding in found)
    assert "load" in failed(found)
    save_file({"w": weights["w"] + 1}, path / "weights.safetensors")
    _recommit(path, contract, commit)
    assert "golden" in failed(check(path))


def test_a_range_that_is_not_trapped(sim_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trunnion_bundle import checks

    monkeypatch.setattr(checks, "_check_range", lambda array, tensor: None)
    assert "index range" in failed(check(sim_bundle))


def test_what_is_no_bundle(tmp_path: Path) -> None:
    (finding,) = check(tmp_path)
    assert finding.state == "failed" and "no COMMITTED" in finding.reason


@pytest.mark.parametrize(
    ("found", "wanted", "is_equal"),
    [
        ([1.0, np.nan, np.inf], [1.0, np.nan, np.inf], True),
        ([1.000_01, 0, 0], [1, 0, 0], True),
        ([1.001, 0, 0], [1, 0, 0], False),
        ([1, np.nan, 0], [1, 0, 0], False),
        ([1, 0, 0], [1, np.nan, 0], False),
        ([np.inf, 0, 0], [-np.inf, 0, 0], False),
        ([1e30, 0, 0], [np.inf, 0, 0], False),
    ],
)
def test_tolerance(found: list[float], wanted: list[float], is_equal: bool, sim_original: Path) -> None:
    signature: Signature = folder.read(sim_original).bundle.signatures["score"]
    same = {"same": np.zeros((3, 3), np.int64)}
    arrays = [{"y": np.array(values, np.float32), **same} for values in (found, wanted)]
    assert (difference(*arrays, signature) == "") == is_equal
