"""The pytest plugin of test sessions: installs the simulation where there is no device, and says what that proves."""

from __future__ import annotations

import pytest
import torch

from cuda_simulator.install import install, is_needed, toolkit_folder
from cuda_simulator.modules import prepare_modules
from cuda_simulator.torch_cuda import DEVICE_NAME as SIMULATED_NAME

ON_DEVICE = "ran on the device: {name}"
SIMULATED = "ran on the simulated device: FlashInfer's plans and launches are real, its kernels are not"
NOT_VERIFIED = (
    "numerics, races and speed of FlashInfer's, Triton's and torch's kernels on a device",
    "streams: races between them, and work that overtakes (one queue stands for all; tests of late work ran on it)",
    "what a driver refuses in a capture beyond waits and copies",
    "NCCL",
)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before anything asks torch for a device.

    Raises:
        pytest.UsageError: there is neither a device nor the compiler that the simulation needs.
    """
    if not is_needed():
        return
    if toolkit_folder() is None:
        raise pytest.UsageError("no CUDA device, and no nvcc on PATH: FlashInfer's host code cannot be compiled")
    install()


def pytest_sessionstart() -> None:
    """Compile before the first test: a test that waits for a compiler would be taken for one that hangs."""
    if torch.cuda.get_device_name() == SIMULATED_NAME:
        prepare_modules()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a session: which tier ran, and what it does not verify."""
    name = torch.cuda.get_device_name()
    if name != SIMULATED_NAME:
        terminalreporter.write_line(ON_DEVICE.format(name=name))
        return
    terminalreporter.write_line(SIMULATED)
    for line in NOT_VERIFIED:
        terminalreporter.write_line(f"not verified: {line}")
