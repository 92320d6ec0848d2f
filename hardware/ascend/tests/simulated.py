"""The simulated NPU, for modules of tests that are of it: importing this skips them where there is a real device."""

from __future__ import annotations

import pytest

simulator = pytest.importorskip("ascend_simulator")
try:
    SIMULATION = simulator.simulation()
except LookupError:
    pytest.skip("there is a real device", allow_module_level=True)
