"""`trunnion models` and `trunnion env`, help, and the commands as separate processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from trunnion.cli.environment import meets, unmet_requirements
from trunnion.cli.threads import excess

Cli = Callable[..., Any]


def _run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trunnion", *arguments], input=stdin, capture_output=True, text=True, check=False
    )


def test_models_lists_families_architectures_and_cards(cli: Cli) -> None:
    outcome = cli("models", "--json")
    families = {family["family"]: family for family in json.loads(outcome.out)}
    assert "LlamaForCausalLM" in families["llama"]["architectures"]
    assert families["llama"]["cards"] > 0
    lines = cli("models").out.splitlines()
    assert len(lines) == len(families)
    assert any(line.startswith("mistral ") and "MistralForCausalLM" in line for line in lines)


def test_env_names_versions_hardware_and_problems(cli: Cli) -> None:
    outcome = cli("env", "--json")
    report = json.loads(outcome.out)
    assert report["python"] == sys.version.split()[0]
    assert report["hardware"]["cpu"] == "ok"
    assert report["threads"] >= 1
    assert outcome.code == int(any(problem["fatal"] for problem in report["problems"]))
    text = cli("env").out
    assert report["torch"] in text and "hardware    cpu: ok" in text


def test_broken_hardware_package_is_fatal_and_named(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "trunnion_broken"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hardware.py").write_text("raise RuntimeError('driver too old')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    outcome = cli("env")
    assert outcome.code == 1
    assert "FATAL: hardware broken: found RuntimeError: driver too old" in outcome.out


def test_a_backend_of_torch_that_cannot_load_stops_nothing(tmp_path: Path) -> None:
    """What another accelerator adds to torch, installed where its libraries are not."""
    (tmp_path / "broken.py").write_text("def load(): raise OSError('libdriver.so is not here')\n")
    metadata = tmp_path / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nbroken = broken:load\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    variables = {**os.environ, "PYTHONPATH": path}
    run = partial(subprocess.run, capture_output=True, text=True, check=False, env=variables)
    assert "libdriver.so is not here" in run([sys.executable, "-c", "import torch"]).stderr
    result = run([sys.executable, "-m", "trunnion", "env"])
    assert result.returncode == 0, result.stderr
    assert "cpu" in result.stdout


def test_what_a_package_says_of_the_machine_is_printed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trunnion_telling"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "hardware.py").write_text(
        "from trunnion_cpu.hardware import CpuHardware\n"
        "class HARDWARE(CpuHardware):\n"
        "    name, device_type = 'telling', 'meta'\n"
        "    def environment_facts(self):\n"
        "        return {'compiler': 'not needed'}\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert json.loads(cli("env", "--json").out)["facts"]["telling compiler"] == "not needed"
    assert "telling compiler not needed\n" in cli("env").out


def test_unmet_requirement_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "trunnion_odd"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_versions.py").write_text('REQUIRES = {"torch": "==1.0", "no-such-thing": ">=2", "pytest": ">=1"}\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    problems = unmet_requirements({"trunnion-odd": "0.1.0"})
    assert [(problem.what, problem.needed) for problem in problems] == [
        ("torch, for trunnion-odd", "==1.0"),
        ("no-such-thing, for trunnion-odd", ">=2"),
    ]


@pytest.mark.parametrize(
    ("version", "specifier", "expected"),
    [
        ("2.13.0+cpu", "==2.13.0", True),
        ("2.13.0", "==2.13", True),
        ("2.13.1", "==2.13.0", False),
        ("2.9.0", ">=2.13", False),
        ("2.13.0", ">=2.9", True),
        ("3.1", ">=3.1.6", False),
    ],
)
def test_version_comparison(version: str, specifier: str, expected: bool) -> None:
    assert meets(version, specifier) is expected


def test_unknown_specifier_is_refused() -> None:
    with pytest.raises(ValueError, match="neither"):
        meets("1.0", "~=1.0")


def test_more_threads_than_cores_are_named() -> None:
    assert excess(4, 1, 4) is None
    assert excess(2, 2, 4) is None
    assert "--threads 5 on 4 usable cores" in str(excess(5, 1, 4))
    assert "--threads 3 of each of 2 processes on 4 usable cores" in str(excess(3, 2, 4))


@pytest.mark.parametrize("command", ["generate", "chat", "check", "port", "port new", "models", "env"])
def test_help_is_plain(cli: Cli, command: str) -> None:
    outcome = cli(*command.split(), "--help")
    assert outcome.code == 0
    assert outcome.out.isascii(), "no boxes"
    assert command not in ("generate", "chat", "check", "port new") or "Example: trunnion" in outcome.out


def test_no_command_shows_the_help_as_it_is(cli: Cli) -> None:
    outcome, asked = cli(), cli("--help")
    assert (outcome.code, outcome.out, outcome.err) == (0, asked.out, "")
    assert "\n  generate " in outcome.out


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from trunnion.cli.main import run; run(['generate', '--help'], open_host=None); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_process_refuses_pickle_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").touch()
    done = _run("generate", "--model", str(tmp_path), "Hi")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "pickle" in done.stderr and "save_pretrained" in done.stderr


def test_debug_shows_the_traceback() -> None:
    done = _run("generate", "--model", "/no/such/model", "--debug", "Hi")
    assert done.returncode == 2
    assert "Traceback" in done.stderr and "'/no/such/model' does not exist" in done.stderr


def test_host_that_is_not_built_names_the_remedy_in_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "trunnion_host"
    package.mkdir()
    (package / "__init__.py").write_text("def library_path():\n    raise FileNotFoundError('not built; install it')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    done = _run("generate", "--model", str(model), "Hi")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "trunnion: not built; install it\n")
