"""What every hardware package owes: its names, an honest report of what runs on the reference, a quiet environment."""

from __future__ import annotations

import importlib
import inspect

import torch

from trunnion.interfaces.attention import AttentionSpec
from trunnion.interfaces.hardware import EnvironmentProblem, Hardware
from trunnion.ops.registry import OPERATORS
from trunnion.reference import ReferenceHardware

SPEC = AttentionSpec(num_qo_heads=2, num_kv_heads=1, head_dim=8, scale=1.0, dtype=torch.float32)


def test_names(hardware: Hardware) -> None:
    """The package says who it is, and its device exists."""
    assert hardware.name
    assert hardware.initialize(0).type == hardware.device_type


def test_environment_is_reported_not_raised(hardware: Hardware) -> None:
    """`trunnion env` can always be asked."""
    assert all(isinstance(problem, EnvironmentProblem) for problem in hardware.check_environment())


def test_report_of_the_reference_is_true(hardware: Hardware) -> None:
    """Operators are reported exactly when the package has no kernel, groups exactly when they are the reference's.

    A package may report parts of its groups as well.
    """
    device = hardware.initialize(0)
    own = set(OPERATORS.registered(torch._C._dispatch_key_for_device(device.type)))
    reported = hardware.on_reference()
    assert own | set(reported) >= set(OPERATORS.names())
    assert not own & set(reported)
    assert all(reported.values()), "every entry has a reason"
    group_class, reason = hardware.group_class(SPEC)
    assert (reason is None) == (not group_class.__module__.startswith(ReferenceHardware.__module__.rpartition(".")[0]))


def test_unsupported_cases_have_reasons(hardware: Hardware) -> None:
    """A package without `unsupported.py` claims everything."""
    package = inspect.getmodule(type(hardware))
    assert package is not None
    name = package.__name__.rpartition(".")[0]
    try:
        listed = importlib.import_module(f"{name}.unsupported").UNSUPPORTED
    except ModuleNotFoundError as error:
        assert error.name == f"{name}.unsupported"
        listed = {}
    assert all(case and reason for case, reason in listed.items())
