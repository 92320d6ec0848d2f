"""The package's entry: its kernels are registered once, and never quietly left out."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from trunnion.ops.registry import OPERATORS
from trunnion_cpu.hardware import DISPATCH_KEY, CpuHardware
from trunnion_cpu.kernels import TORCH_KERNELS, kernels


def test_kernels_are_registered_once_however_often_it_is_initialised() -> None:
    for _ in range(2):
        CpuHardware().initialize(0)
    assert set(OPERATORS.registered(DISPATCH_KEY)) == set(kernels())


def test_another_package_on_the_key_is_an_error() -> None:
    """Its kernels would run in place of ours, or the reference."""
    OPERATORS.unregister("cpu")
    OPERATORS.register("other", DISPATCH_KEY, "silu_and_mul", OPERATORS.reference("silu_and_mul"))
    try:
        with pytest.raises(ValueError, match="belongs to package 'other'"):
            CpuHardware().initialize(0)
    finally:
        OPERATORS.unregister("other")
    CpuHardware().initialize(0)
    assert set(OPERATORS.registered(DISPATCH_KEY)) == set(kernels())


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"device_index 1 .* choices: 0"):
        CpuHardware().initialize(1)


def _environment(**variables: str) -> dict[str, object]:
    """What a fresh process says of its native operators, and which kernels it registers."""
    code = (
        "import json\n"
        "from trunnion.ops.registry import OPERATORS\n"
        "from trunnion_cpu.hardware import DISPATCH_KEY, CpuHardware\n"
        "hardware = CpuHardware()\n"
        "problems = [[p.what, p.found, p.fatal] for p in hardware.check_environment()]\n"
        "fatal = any(fatal for _, _, fatal in problems)\n"
        "facts = None if fatal else dict(hardware.environment_facts())\n"
        "fatal or hardware.initialize(0)\n"
        "own = sorted(OPERATORS.registered(DISPATCH_KEY))\n"
        "print(json.dumps({'problems': problems, 'facts': facts, 'own': own}))\n"
    )
    done = subprocess.run(
        (sys.executable, "-c", code), env={**os.environ, **variables}, check=True, capture_output=True, text=True
    )
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_the_reference_can_be_asked_for() -> None:
    found = _environment(TRUNNION_CPU_ISA="reference")
    assert found["problems"] == []
    assert found["facts"] == {"native operators": "none: TRUNNION_CPU_ISA=reference"}
    assert found["own"] == sorted(TORCH_KERNELS)


def test_a_set_of_kernels_can_be_asked_for() -> None:
    found = _environment(TRUNNION_CPU_ISA="portable")
    assert str(found["facts"]["native operators"]).startswith("portable (of ")  # type: ignore[index]


def test_an_unknown_set_of_kernels_is_fatal() -> None:
    (problem,) = _environment(TRUNNION_CPU_ISA="mmx")["problems"]  # type: ignore[misc]
    assert "'mmx'" in problem[1] and "portable, reference" in problem[1]
    assert problem[2] is True


def test_what_cannot_be_built_is_reported_and_left_out(tmp_path) -> None:
    """Without a compiler a source tree runs on torch's operators, and says so."""
    variables = {"XDG_CACHE_HOME": str(tmp_path), "CXX": str(tmp_path / "no-compiler")}
    found = _environment(**variables)
    ((what, why, fatal),) = found["problems"]  # type: ignore[misc]
    assert (what, fatal) == ("native operators", False)
    assert "no-compiler" in why
    assert str(found["facts"]["native operators"]).startswith("none: ")  # type: ignore[index]
    assert found["own"] == sorted(TORCH_KERNELS)
    assert not list(tmp_path.rglob("*.so"))
