"""What is said of a machine: no CANN, a torch_npu of another torch, a chip of no known family."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trunnion_ascend import environment
from trunnion_ascend.hardware import AscendHardware
from trunnion_ascend.soc import soc_of


def problems() -> dict[str, str]:
    return {problem.what: problem.found for problem in environment.problems()}


def test_a_machine_that_is_complete_has_no_problems() -> None:
    assert problems() == {}
    assert environment.facts()["device"] == torch.npu.get_device_name(0)


def test_a_torch_npu_of_another_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment.metadata, "version", lambda name: "2.9.0.post2")
    assert problems() == {"torch_npu": "2.9.0.post2"}
    monkeypatch.setattr(environment.metadata, "version", lambda name: f"{torch.__version__.partition('+')[0]}.post7")
    assert problems() == {}, "a fourth part is torch_npu's own"


def test_a_device_that_does_not_exist_is_named_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"device_index 99 does not exist on 'ascend'; choices: 0 \.\.\. "):
        AscendHardware().initialize(99)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Ascend910B1", "Atlas A2"),
        ("Ascend910B2C", "Atlas A2"),
        ("Ascend910B4-1", "Atlas A2"),
        ("Ascend910_9391", "Atlas A3"),
        ("Ascend310P3", "Atlas 300I (310P)"),
    ],
)
def test_a_chip_is_known_by_its_name(name: str, family: str) -> None:
    assert soc_of(name).family == family


@pytest.mark.parametrize("name", ["Ascend910B", "Ascend910A", "Ascend310B1", "Ascend950PR_9599", ""])
def test_a_chip_of_no_family_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Ascend910B without a digit is an older chip than those with one."""
    with pytest.raises(ValueError, match=r"is of no family that 'ascend' knows; choices: Atlas A2 "):
        soc_of(name)
    monkeypatch.setattr(torch.npu, "get_device_name", lambda index: name)
    assert "NPU" in problems()


ABSENT = """
from trunnion_ascend.hardware import AscendHardware
hardware = AscendHardware()
print([problem.what for problem in hardware.check_environment()], hardware.environment_facts()["device"])
try:
    hardware.initialize(0)
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(environment.cann() is not None, reason="there is a CANN here")
def test_without_cann_it_is_said_and_nothing_crashes() -> None:
    variables = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=os.pathsep.join(sys.path))
    result = subprocess.run((sys.executable, "-c", ABSENT), capture_output=True, text=True, env=variables)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first == "['NPU', 'CANN'] none"
    assert second.startswith("device_index 0 does not exist on 'ascend'; choices: none, torch_npu cannot be imported: ")


def test_what_torch_npu_prints_is_no_answer(tmp_path: Path) -> None:
    """stdout is for what a command was asked."""
    (tmp_path / "torch_npu.py").write_text("print('Warning: no CANN')")
    question = "from trunnion_ascend import environment; print(environment.why_no_torch_npu())"
    path = os.pathsep.join((str(tmp_path), *sys.path))
    variables = dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=path)
    result = subprocess.run((sys.executable, "-c", question), capture_output=True, text=True, env=variables)
    assert result.stdout == "None\n", result.stderr
    assert "Warning: no CANN" in result.stderr
