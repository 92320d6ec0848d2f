"""Precompiled PJRT executables: equal to JAX without a compiler, and refused on another plugin or topology by name."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from serving import Server, serving
from test_pjrt import PARAMS, ask, bundle, example, function, plugin

import trunnion_bundle
from trunnion_bundle import BundleError
from trunnion_bundle.check import FAILED, check
from trunnion_bundle.cli import main
from trunnion_bundle.edits import compile_for

__all__ = ["bundle", "plugin"]


@pytest.fixture(scope="session")
def with_executables(bundle: Path, programs: Path, plugin: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scorer with executables of the CPU plugin; nobody changes it."""
    folder = Path(shutil.copytree(bundle, tmp_path_factory.mktemp("executables") / "scorer"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trunnion_bundle.programs.BIN", programs)
        opened = compile_for(folder, "pjrt-cpu", plugin=Path(plugin))
    lowering = opened.bundle.lowerings["pjrt-cpu"]
    assert "interface 0." in lowering.plugin_version and "sha256" in lowering.topology
    assert opened.entries[-1].action == "compile"
    return folder


@pytest.fixture
def changed(with_executables: Path, tmp_path: Path) -> Path:
    """A copy of one's own."""
    return Path(shutil.copytree(with_executables, tmp_path / "scorer"))


def settings(plugin: str, *options: str) -> tuple[str, ...]:
    return ("--settings", json.dumps({"pjrt_plugin": plugin}), *options)


def check_answers(server: Server) -> None:
    for rows, length in ((1, 4), (3, 8), (21, 4)):
        values = example(rows, length)
        scores, longest = jax.jit(function)(PARAMS, values["tokens"], values["scale"])
        found = ask(server, values)
        np.testing.assert_allclose(found.as_numpy("scores"), scores, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(found.as_numpy("longest"), longest)


def test_nothing_is_compiled_when_they_are_served(programs: Path, with_executables: Path, plugin: str) -> None:
    with serving(programs, with_executables, *settings(plugin, "--no-jit")) as server:
        assert "is served on pjrt-cpu, loaded in" in server.wait_for_line("is served on")
        check_answers(server)
        assert server.metric("bundle_jit_loads_total", model="scorer") == 0
        assert server.metric("bundle_loads_total", model="scorer", result="ok") == 1


def edit(folder: Path, commit: Any, **values: str) -> None:
    contract = json.loads((folder / "bundle.json").read_text())
    contract["lowerings"]["pjrt-cpu"] |= values
    commit(folder, contract)


@pytest.mark.parametrize(
    ("key", "what", "value"),
    [
        ("topology", "topology", "8 x cpu, sha256 " + "0" * 64),
        ("plugin_version", "plugin", "cpu, interface 0.7, xla_version 1"),
    ],
)
def test_of_another_place_they_are_refused(
    programs: Path, changed: Path, plugin: str, commit: Any, key: str, what: str, value: str
) -> None:
    here = json.loads((changed / "bundle.json").read_text())["lowerings"]["pjrt-cpu"][key]
    edit(changed, commit, **{key: value})
    reason = f'pjrt-cpu: engine pjrt: compiled for {what} "{value}", here is "{here}"'
    with serving(programs, changed, *settings(plugin)) as server:
        line = server.wait_for_line("is served on")
        assert f"is served on stablehlo (not on {reason}), compiled here, loaded in" in line
        check_answers(server)
        assert server.metric("bundle_jit_loads_total", model="scorer") == 1
    with serving(programs, changed, *settings(plugin, "--no-jit")) as server:
        line = server.wait_for_line("could not be loaded")
        assert f"no lowering runs here: {reason}; stablehlo: it would be compiled here, which --no-jit forbids" in line


def test_without_executables_no_jit_refuses(programs: Path, bundle: Path, plugin: str) -> None:
    with serving(programs, bundle, *settings(plugin, "--no-jit")) as server:
        line = server.wait_for_line("could not be loaded")
        assert "stablehlo: it would be compiled here, which --no-jit forbids" in line


def test_one_that_is_cut_is_not_loaded(programs: Path, changed: Path, plugin: str, commit: Any) -> None:
    contract = json.loads((changed / "bundle.json").read_text())
    path = contract["lowerings"]["pjrt-cpu"]["modules"]["score"]["programs"][0]["path"]
    data = (changed / path).read_bytes()[:100]
    (changed / path).write_bytes(data)
    contract["files"][path] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    commit(changed, contract)
    with serving(programs, changed, *settings(plugin, "--no-jit")) as server:
        assert "pjrt-cpu: engine pjrt: loading a precompiled program" in server.wait_for_line("could not be loaded")


def test_the_python_runner_says_that_they_are_not_for_it(with_executables: Path) -> None:
    assert trunnion_bundle.load(with_executables).platform == "stablehlo"
    with pytest.raises(BundleError, match=r"precompiled executables run in the C\+\+ runtime"):
        trunnion_bundle.load(with_executables, platform="pjrt-cpu")
    assert not [finding for finding in check(with_executables) if finding.state == FAILED]


def test_what_cannot_be_compiled_is_said(
    programs: Path,
    changed: Path,
    plugin: str,
    sim_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("trunnion_bundle.programs.BIN", programs)

    def refused(folder: Path, *words: str) -> str:
        assert main(["compile", str(folder), "--platform", *words]) == 2
        return capsys.readouterr().err

    before = (changed / "COMMITTED").read_bytes()
    assert "has a lowering for pjrt-cpu" in refused(changed, "pjrt-cpu")
    assert "no PJRT plugin for 'cuda' was given" in refused(changed, "pjrt-cuda")
    assert "its platform is 'cpu'; pjrt-tpu needs 'tpu'" in refused(changed, "pjrt-tpu", "--plugin", plugin)
    assert "cannot be loaded: none.so" in refused(changed, "pjrt-tpu", "--plugin", "none.so")
    assert "has no StableHLO for 'cpu'; it has: sim" in refused(sim_bundle, "pjrt-cpu")
    assert "it is for platforms that start with pjrt-" in refused(changed, "cpu-x86_64-avx2", "--plugin", plugin)
    assert (changed / "COMMITTED").read_bytes() == before
