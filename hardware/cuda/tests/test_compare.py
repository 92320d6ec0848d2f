"""`trunnion compare` on this package: against transformers, and against its references."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cuda_simulator.torch_cuda import DEVICE_NAME
from tests.cli.compared import check_no_module_differs


@pytest.mark.parametrize("against", ["hf", "port"])
def test_no_module_differs(against: str, tmp_path: Path) -> None:
    is_simulated = torch.cuda.get_device_name() == DEVICE_NAME
    check_no_module_differs("cuda", against, tmp_path, simulator="cuda_simulator" if is_simulated else "")
