"""`trunnion compare` on this package: against transformers, and against its references."""

from __future__ import annotations

from pathlib import Path

import pytest
from ascend_simulator.install import simulation
from tests.cli.compared import check_no_module_differs


def _is_simulated() -> bool:
    try:
        simulation()
    except LookupError:
        return False
    return True


@pytest.mark.parametrize("against", ["hf", "port"])
def test_no_module_differs(against: str, tmp_path: Path) -> None:
    simulator = "ascend_simulator" if _is_simulated() else ""
    check_no_module_differs("ascend", against, tmp_path, simulator=simulator)
