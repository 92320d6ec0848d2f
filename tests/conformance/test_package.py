"""What every hardware package owes: its names, an honest report of what runs on the reference, a quiet environment."""

from __future__ import annotations

import re

import pytest
import torch

from trunnion.config import WEIGHTS
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import AttentionSpec
from trunnion.interfaces.hardware import EnvironmentProblem, Hardware
from trunnion.ops.registry import OPERATORS
from trunnion.reference import ReferenceHardware

from .conftest import is_case, listed
from .test_groups import SPECS
from .test_operators import CASES

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
    """A package without `unsupported.py` claims everything; what it refuses of this suite exists."""
    refused = listed(hardware, "REFUSED")
    assert all(case and reason for case, reason in (*listed(hardware, "UNSUPPORTED").items(), *refused.items()))
    operators = (f"{operator}-{case}" for operator, cases in CASES.items() for case in cases)
    known = [*SPECS, *operators]
    assert not [key for key in refused if not any(is_case(key, name) for name in known)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_ways_to_keep_weights_are_offered_or_refused_by_name(hardware: Hardware, weights: str) -> None:
    """With the choices, before anything is loaded."""
    if weights in hardware.weights_choices:
        assert hardware.choosing(weights=weights).weights == weights
        return
    text = f"weights '{weights}' is not for hardware '{hardware.name}'; choices: {', '.join(hardware.weights_choices)}"
    with pytest.raises(UnsupportedError, match=re.escape(text)):
        hardware.choosing(weights=weights)
