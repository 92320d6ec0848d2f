"""Requests are checked, cut, padded and joined as docs/format.md says; the simulated device's answers are known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trunnion_bundle
from trunnion_bundle import BundleError, Pad, Runner, edits
from trunnion_bundle.checks import RequestError
from trunnion_bundle.examples import sim
from trunnion_bundle.runner import padded
from trunnion_bundle.tensors import Tensor


@pytest.fixture
def runner(sim_original: Path) -> Runner:
    return trunnion_bundle.load(sim_original)


def _request(rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(rows)
    ids = np.stack([random.integers(0, below, rows) for below in sim.ROWS], axis=1)
    return {"x": random.standard_normal((rows, 4), np.float32), "ids": ids}


@pytest.mark.parametrize("rows", [1, 2, 8, 33, 256, 257, 600])
def test_answers_any_number_of_rows(runner: Runner, rows: int) -> None:
    request = _request(rows)
    found = runner(**request)
    np.testing.assert_allclose(found["y"], 1 + 0.5 * request["x"].sum(1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found["same"], request["ids"])


def test_the_engine_sees_allowed_sizes_only(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, run = [], runner._engine.run

    def watched(module: str, inputs: Any) -> Any:
        seen.append({array.shape[0] for array in inputs})
        return run(module, inputs)

    monkeypatch.setattr(runner._engine, "run", watched)
    for rows in (1, 5, 300):
        runner(**_request(rows))
    assert seen == [{1}, {8}, {256}, {128}]


def test_sizes_that_differ_between_requests(runner: Runner) -> None:
    for length in (1, 7, 16):
        tokens = np.arange(2 * length, dtype=np.int64).reshape(2, length)
        totals = tokens.sum(1).astype(np.float32)
        np.testing.assert_array_equal(runner("total", tokens=tokens)["total"], np.stack([totals, totals], 1))


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda r: r.pop("x"), "missing input 'x'; inputs: x, ids"),
    "unknown": (lambda r: r.update(z=r["x"]), "unknown input 'z'; inputs: x, ids"),
    "dtype": (lambda r: r.update(ids=r["ids"].astype(np.int32)), "is int32; it must be INT64"),
    "rank": (lambda r: r.update(x=r["x"][0]), "has shape [4]; dims: ['batch', 4]"),
    "size": (lambda r: r.update(x=r["x"][:, :3]), "has shape [3, 3]; dims: ['batch', 4]"),
    "rows": (lambda r: r.update(ids=r["ids"][:2]), "has shape [2, 3]; batch is 3 in another input"),
    "no rows": (lambda r: r.update(x=r["x"][:0], ids=r["ids"][:0]), "a request has at least one row"),
    "index = rows": (lambda r: r["ids"].__setitem__((1, 2), 50), "at [1, 2] is 50; limits: 0 to 49"),
    "index below": (lambda r: r["ids"].__setitem__((2, 0), -1), "at [2, 0] is -1; limits: 0 to 999"),
    "the largest index": (lambda r: r["ids"].__setitem__((0, 1), 2**63 - 1), "at [0, 1] is 9223372036854775807"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_requests(runner: Runner, name: str) -> None:
    change, words = REFUSED[name]
    request = _request(3)
    change(request)
    with pytest.raises(RequestError) as error:
        runner.run(None, request)
    assert words in str(error.value)


@pytest.mark.parametrize("length", [0, 17])
def test_refuses_sizes(runner: Runner, length: int) -> None:
    with pytest.raises(RequestError, match=f"length is {length}; limits: 1 to 16"):
        runner("total", tokens=np.zeros((1, length), np.int64))


def test_refuses_what_is_too_long(sim_bundle: Path) -> None:
    edits.set_policy(sim_bundle, {"score": {"oversize": "refuse"}})
    with pytest.raises(RequestError, match="257 rows; limit: 256"):
        trunnion_bundle.load(sim_bundle)(**_request(257))


def test_names_what_it_has(runner: Runner, sim_original: Path) -> None:
    with pytest.raises(BundleError, match="unknown signature 'sum'; choices: score, total"):
        runner.run("sum", {})
    with pytest.raises(BundleError, match="no lowering for 'tpu'; the bundle has: sim"):
        trunnion_bundle.load(sim_original, platform="tpu")


@pytest.mark.parametrize(
    ("pad", "wanted"),
    [
        (Pad(), [[1, 2], [3, 4], [0, 0]]),
        (Pad(rule="repeat_row"), [[1, 2], [3, 4], [1, 2]]),
        (Pad(rule="value", value=9), [[1, 2], [3, 4], [9, 9]]),
    ],
    ids=lambda value: value.rule if isinstance(value, Pad) else "",
)
@pytest.mark.parametrize("axis", [0, 1])
def test_padding_rules(pad: Pad, wanted: list[list[int]], axis: int) -> None:
    tensor = Tensor(name="x", dtype="INT64", dims=("batch", 2) if axis == 0 else (2, "batch"), pad=pad)
    rows = np.array([[1, 2], [3, 4]])
    found = padded(rows if axis == 0 else rows.T, tensor, 3)
    np.testing.assert_array_equal(found if axis == 0 else found.T, wanted)
    assert found.flags["C_CONTIGUOUS"]


def test_another_machine_s_lowering_is_refused_with_the_reason(
    sim_bundle: Path, sim_contract: dict[str, Any], commit: Callable[[Path, dict[str, Any]], None]
) -> None:
    library = {"library": "lowerings/cpu-x86_64-avx2/m.so", "constants": {}}
    (sim_bundle / "lowerings/cpu-x86_64-avx2").mkdir(parents=True)
    (sim_bundle / library["library"]).write_bytes(b"")
    sim_contract["files"][library["library"]] = {
        "sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "size": 0,
    }  # fmt: skip
    lowering = {
        "engine": "aoti", "device": "cpu", "torch_version": "2.13.0", "machine": "x86_64", "device_arch": None,
        "isa": ["avx1024"], "modules": {"main": library, "sequence": library},
    }  # fmt: skip
    sim_contract["lowerings"]["cpu-x86_64-avx2"] = lowering
    commit(sim_bundle, sim_contract)
    assert trunnion_bundle.load(sim_bundle).platform == "sim"
    with pytest.raises(BundleError, match="cpu-x86_64-avx2: this processor has no avx1024"):
        trunnion_bundle.load(sim_bundle, platform="cpu-x86_64-avx2")
    lowering |= {"isa": [], "torch_version": "2.12.1"}
    commit(sim_bundle, sim_contract)
    with pytest.raises(BundleError, match=r"compiled by torch 2\.12\.1; here is 2\."):
        trunnion_bundle.load(sim_bundle, platform="cpu-x86_64-avx2")
    assert json.loads((sim_bundle / "bundle.json").read_text())["lowerings"].keys() == {"sim", "cpu-x86_64-avx2"}
