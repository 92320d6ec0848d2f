"""Puts the simulation into a process: before torch_npu is imported, whose libraries look for CANN's by name."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from ascend_simulator.libraries import load

if TYPE_CHECKING:
    from ascend_simulator.device import Simulation

DEFAULT_SOC = "Ascend910B3"
_simulations: list[Simulation] = []


def is_needed() -> bool:
    """Whether no CANN is installed here, and so no NPU can be used."""
    try:
        ctypes.CDLL("libascendcl.so")
    except OSError:
        return True
    return bool(_simulations)


def simulation() -> Simulation:
    """The simulated device of this process; LookupError if none is installed."""
    if not _simulations:
        raise LookupError("no simulated NPU is installed in this process")
    return _simulations[0]


def install(*, soc_name: str = DEFAULT_SOC, num_devices: int = 1) -> Simulation:
    """The simulated device of this process, made on the first call; torch_npu is imported then.

    Args:
        soc_name: what the device says that it is, a name that torch_npu knows.
        num_devices: how many there are; this process uses one of them, and others do the others.
    """
    if _simulations:
        return _simulations[0]
    # Calls are made by the thread that asks for them, or they would come when Python is elsewhere.
    os.environ["TASK_QUEUE_ENABLE"] = "0"
    # What follows imports torch, which would import torch_npu before there is anything for it to find; processes that
    # this one starts find nothing either.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    from ascend_simulator.device import Simulation
    from ascend_simulator.operators import all_rules
    from ascend_simulator.rules import PROLOGUE

    rules = all_rules()
    library = load(PROLOGUE + "".join(found.entry_points() for found in rules.values()))
    library.sim_set_soc_name(soc_name.encode())
    library.sim_set_num_devices(num_devices)
    _simulations.append(Simulation(library, rules))
    # It prints that CANN's environment is not set.
    with redirect_stdout(sys.stderr):
        import torch_npu  # noqa: F401

    return _simulations[0]
