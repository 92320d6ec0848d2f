"""The commands: what they print, what they change, and their exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import trunnion_bundle
from trunnion_bundle import folder, programs
from trunnion_bundle.cli import main

RECIPE = """
from trunnion_bundle import Batching, Endpoint, Input
import numpy as np

def double():
    endpoint = Endpoint(function=lambda x: x * 2, inputs={"x": Input(example=np.ones((2, 3), np.float32))},
                        outputs=("y",), batching=Batching(allowed_sizes=(1, 2)))
    return {"endpoints": {"double": endpoint}, "name": "double"}

recipe = double
number = 3
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def invoke(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return (code, *capsys.readouterr())

    return invoke


def test_export_check_run(run: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(RECIPE)
    target = tmp_path / "double" / "1"
    code, out, err = run("export", tmp_path / "model.py:double", target, "--platform", "cpu", "--note", "first")
    assert (code, err) == (0, "")
    assert "double, stablehlo" in out
    assert folder.read(target).entries[-1].note == "first"
    assert folder.read(target).bundle.lowerings["stablehlo"].platforms == ("cpu",)
    code, out, _ = run("check", target)
    assert code == 0 and out.splitlines()[-1].endswith(" passed, 0 failed")
    out = run("run", target, "--inputs", '{"x": [[1, 2, 3]]}')[1]
    assert json.loads(out) == {"y": [[2, 4, 6]]}
    out = run("run", target)[1]
    assert json.loads(out) == {"y": [[2, 2, 2], [2, 2, 2]]}
    code, _, err = run("export", tmp_path / "model.py", target)
    assert code == 2 and "a version is written once" in err


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        ("model.py:number", "has no function 'number'; it has: "),
        ("model.py:triple", "has no function 'triple'; it has: "),
        ("gone.py", "no file "),
        ("no_such_module_here", "no module 'no_such_module_here'"),
        ("math:sqrt", "sqrt"),
    ],
)
def test_export_refuses(run: Run, tmp_path: Path, recipe: str, words: str) -> None:
    (tmp_path / "model.py").write_text(RECIPE)
    place = f"{tmp_path}/{recipe}" if ".py" in recipe else recipe
    if recipe.startswith("math"):
        with pytest.raises(TypeError):
            run("export", place, tmp_path / "1")
        return
    code, _, err = run("export", place, tmp_path / "1")
    assert code == 2 and words in err


def test_policy_and_history(run: Run, sim_bundle: Path, sim_original: Path) -> None:
    code, _, _ = run("set", sim_bundle, "max_delay_us=500", "padding=pad_up", "--signature", "score")
    assert code == 0
    assert run("diff", sim_original, sim_bundle)[:2] == (
        1,
        "signatures.score.batching.max_delay_us: 0 -> 500\n"
        'signatures.score.batching.padding: "least_cost" -> "pad_up"\n',
    )
    entries = json.loads(run("history", sim_bundle, "--json")[1])
    assert [(entry["action"], entry["note"]) for entry in entries] == [
        ("export", ""), ("set", "max_delay_us=500 padding=pad_up"),
    ]  # fmt: skip
    assert run("rollback", sim_bundle, entries[0]["hash"][:10])[0] == 0
    assert run("diff", sim_original, sim_bundle)[:2] == (0, "")
    lines = run("history", sim_bundle)[1].splitlines()
    assert [line.split()[3] for line in lines] == ["export", "set", "rollback"]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("set", "padding=pad"), "score.padding is 'pad'; choices: pad_up, batch_down, least_cost"),
        (("set", "padding"), "'padding' is no change; write KEY=VALUE"),
        (("set", "max_delay_us=1", "--signature", "sum"), "unknown signature 'sum'; choices: score, total"),
        (("rollback", "ffffffff"), "names 0 entries"),
        (("compile", "--platform", "cpu-mips"), "unknown platform 'cpu-mips'; choices: cpu-x86_64-avx512"),
        (("compile", "--platform", "cpu-x86_64-avx2"), "the bundle has no source to compile"),
        (("run", "--signature", "sum"), "unknown signature 'sum'; choices: score, total"),
        (("run", "--inputs", '{"x": [[1, 2, 3, "a"]]}'), "input 'x' is no FP32"),
        (("run", "--inputs", '{"z": 1}'), "unknown input 'z'; inputs: x, ids"),
        (("run", "--inputs", "["), "no JSON"),
        (("run", "--platform", "tpu"), "no lowering for 'tpu'; the bundle has: sim"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes(run: Run, sim_bundle: Path, words: tuple[str, ...], error: str) -> None:
    code, _, err = run(words[0], sim_bundle, *words[1:])
    assert code == 2
    assert error in err
    folder.read(sim_bundle)


def test_show(run: Run, sim_bundle: Path) -> None:
    code, out, _ = run("show", sim_bundle)
    assert code == 0
    for words in ("signature score (default)", "ids: INT64 [batch, 3], from 0 to below 1000 by column", "lowering sim"):
        assert words in out
    found = json.loads(run("show", sim_bundle, "--json", "--cold-start")[1])
    assert found["bundle"] == json.loads((sim_bundle / "bundle.json").read_text())
    assert found["runs_here"] == {"sim": ""}
    assert found["cold_start"]["sim"].keys() == {"load_seconds", "first_score_seconds", "first_total_seconds"}
    assert 0.001 < found["cold_start"]["sim"]["first_score_seconds"] < 10


def test_check_fails_with_1(run: Run, sim_bundle: Path) -> None:
    (sim_bundle / "extra").write_text("")
    code, out, _ = run("check", sim_bundle, "--json")
    assert code == 1
    assert json.loads(out)[0]["state"] == "failed"


def test_serve_and_bench_are_programs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their words reach them unread; without the program the error says what is missing."""
    monkeypatch.setattr(programs, "BIN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    code, _, err = run("serve", "--help")
    assert code == 2 and "no program trunnion-serve-bundle" in err
    for name in ("serve", "bench"):
        program = tmp_path / f"trunnion-{name}-bundle"
        program.write_text('#!/bin/sh\necho "$0" "$@"\nexit 7\n')
        program.chmod(0o755)
        setup = (
            f"import sys, pathlib; from trunnion_bundle import cli, programs; programs.BIN = pathlib.Path('{tmp_path}')"
        )
        call = f"sys.exit(cli.main(['{name}', '--port', '0', '--help']))"
        command = (sys.executable, "-c", f"{setup}; {call}")
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (found.returncode, found.stdout) == (7, f"{program} --port 0 --help\n")


def test_module_runs_as_a_program(sim_bundle: Path) -> None:
    command = (sys.executable, "-m", "trunnion_bundle", "run", str(sim_bundle), "--signature", "total", "--inputs", "-")
    text = '{"tokens": [[1, 2, 3]]}'
    found = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == {"total": [[6, 6]]}


def test_answers_to_floats_of_16_bits_are_numbers(tmp_path: Path, run: Run) -> None:
    import jax.numpy as jnp

    endpoint = trunnion_bundle.Endpoint(
        function=lambda x: x + x, inputs={"x": trunnion_bundle.Input(example=jnp.ones((2, 1), jnp.bfloat16))},
        outputs=("y",), batching=trunnion_bundle.Batching(allowed_sizes=(2,)),
    )  # fmt: skip
    trunnion_bundle.save(tmp_path / "1", endpoint, name="half")
    assert json.loads(run("run", tmp_path / "1", "--inputs", '{"x": [[0.5], [3]]}')[1]) == {"y": [[1.0], [6.0]]}
