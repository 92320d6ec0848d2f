"""The package's entry: its kernels are registered once, and never quietly left out."""

from __future__ import annotations

import pytest

from trunnion.ops.registry import OPERATORS
from trunnion_cpu.hardware import DISPATCH_KEY, CpuHardware
from trunnion_cpu.kernels import KERNELS


def test_kernels_are_registered_once_however_often_it_is_initialised() -> None:
    for _ in range(2):
        CpuHardware().initialize(0)
    assert set(OPERATORS.registered(DISPATCH_KEY)) == set(KERNELS)


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
    assert set(OPERATORS.registered(DISPATCH_KEY)) == set(KERNELS)


def test_a_device_that_does_not_exist_is_named() -> None:
    with pytest.raises(ValueError, match=r"device_index 1 .* choices: 0"):
        CpuHardware().initialize(1)
