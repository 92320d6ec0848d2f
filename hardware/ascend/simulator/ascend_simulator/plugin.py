"""The pytest plugin of test sessions: installs the simulation where there is no NPU, and says what that proves."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ascend_simulator.install import DEFAULT_SOC, install, is_needed, simulation
from ascend_simulator.libraries import acl_headers

ON_DEVICE = "ran on the device: {name}"
SIMULATED = "ran on the simulated {name}: torch_npu is real, CANN and its kernels are not"
RAN = "operators by rules: {calls} calls of {names} of the {rules} that rules are written for"
NOT_VERIFIED = (
    "numerics, races, limits and speed of CANN's kernels",
    "what a document does not say of an operator: rules compute in float32 and round once",
    "streams of one capture that overtake each other, and torch_npu's task queue",
    "HCCL: ranks are processes that meet at a socket",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soc", default=DEFAULT_SOC, metavar="NAME", help="what the simulated NPU says that it is")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Before anything imports torch, which would look for a CANN that is not here.

    Raises:
        pytest.UsageError: there is neither a CANN nor the torch_npu that the simulation is made for.
    """
    if not is_needed():
        return
    try:
        acl_headers()
    except ModuleNotFoundError as error:
        raise pytest.UsageError(str(error)) from error
    install(soc_name=early_config.known_args_namespace.soc)


@pytest.hookimpl(optionalhook=True)
def pytest_matrix_device() -> Mapping[str, object]:
    """What the matrix's outcomes say of the device."""
    import torch

    name = torch.npu.get_device_name()
    try:
        simulation()
    except LookupError:
        return {"simulated": False, "description": ON_DEVICE.format(name=name), "not_verified": []}
    return {"simulated": True, "description": SIMULATED.format(name=name), "not_verified": list(NOT_VERIFIED)}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The last lines of a session: which tier ran, and what it does not verify."""
    import torch

    name = torch.npu.get_device_name()
    try:
        found = simulation()
    except LookupError:
        terminalreporter.write_line(ON_DEVICE.format(name=name))
        return
    terminalreporter.write_line(SIMULATED.format(name=name))
    ran = RAN.format(calls=found.calls.total(), names=len(found.calls), rules=len(found.rules))
    terminalreporter.write_line(ran)
    for line in NOT_VERIFIED:
        terminalreporter.write_line(f"not verified: {line}")
