"""The pytest plugin of test sessions: installs the simulation where there is no device, and says what that proves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from cuda_simulator.install import install, is_needed, toolkit_folder
from cuda_simulator.modules import prepare_modules, prepare_nightly_modules
from cuda_simulator.torch_cuda import DEVICE_NAME as SIMULATED_NAME
from cuda_simulator.torch_cuda import simulation

ON_DEVICE = "ran on the device: {name}"
SIMULATED = "ran on the simulated device: FlashInfer's plans and launches are real, its kernels are not"
NOT_VERIFIED = (
    "numerics, races and speed of FlashInfer's, Triton's and torch's kernels on a device",
    "streams: races between them, and work that overtakes (one queue stands for all; tests of late work ran on it)",
    "what a driver refuses in a capture beyond waits and copies",
    "NCCL",
)


INTERPRETED, ABSENT, AUTO = "interpreted", "absent", "auto"
SLOW_FOLDER = "tests/matrix"
TRITON_RAN = "Triton's kernels ran in its interpreter: {count} launches of {kernels} kernels, replays not counted"
TRITON_ABSENT = "Triton's kernels did not run: operators and groups that have some ran on the reference"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--triton",
        choices=(INTERPRETED, ABSENT, AUTO),
        default=AUTO,
        help="whether the simulated device interprets Triton's kernels, some milliseconds for each of a kernel's "
        f"programs, or is one without Triton; auto: not for {SLOW_FOLDER} as a whole",
    )


def interprets_triton(choice: str, arguments: Sequence[str]) -> bool:
    """What `--triton` means for a session with these arguments."""
    is_slow = any(Path(argument.partition("::")[0]).as_posix().endswith(SLOW_FOLDER) for argument in arguments)
    return choice == INTERPRETED or (choice == AUTO and not is_slow)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    """Before anything asks torch for a device.

    Raises:
        pytest.UsageError: there is neither a device nor the compiler that the simulation needs.
    """
    if not is_needed():
        return
    if toolkit_folder() is None:
        raise pytest.UsageError("no CUDA device, and no nvcc on PATH: FlashInfer's host code cannot be compiled")
    install(interprets_triton=interprets_triton(early_config.known_args_namespace.triton, args))


def pytest_sessionstart() -> None:
    """Compile before the first test: a test that waits for a compiler would be taken for one that hangs."""
    if torch.cuda.get_device_name() == SIMULATED_NAME:
        prepare_modules()


def pytest_collection_finish(session: pytest.Session) -> None:
    """The same for what nightly tests need, where some were chosen."""
    is_nightly = any(item.get_closest_marker("nightly") for item in session.items)
    if is_nightly and not session.config.option.collectonly and torch.cuda.get_device_name() == SIMULATED_NAME:
        prepare_nightly_modules()


@pytest.hookimpl(optionalhook=True)
def pytest_matrix_device() -> Mapping[str, object]:
    """What the matrix's outcomes say of the device."""
    name = torch.cuda.get_device_name()
    if name != SIMULATED_NAME:
        return {"simulated": False, "description": ON_DEVICE.format(name=name), "not_verified": []}
    return {"simulated": True, "description": SIMULATED, "not_verified": list(NOT_VERIFIED)}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a session: which tier ran, and what it does not verify."""
    name = torch.cuda.get_device_name()
    if name != SIMULATED_NAME:
        terminalreporter.write_line(ON_DEVICE.format(name=name))
        return
    terminalreporter.write_line(SIMULATED)
    found = simulation()
    launches = found.triton_launches
    ran = TRITON_RAN.format(count=launches.total(), kernels=len(launches))
    terminalreporter.write_line(ran if found.interprets_triton else TRITON_ABSENT)
    for line in NOT_VERIFIED:
        terminalreporter.write_line(f"not verified: {line}")
