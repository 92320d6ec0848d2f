"""Collectives as far as they go without HCCL: torch_npu's own process group is made; its first call looks for HCCL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trunnion.interfaces.collectives import NoCollectives
from trunnion.reference.collectives import TIMEOUT

simulator = pytest.importorskip("ascend_simulator")
try:
    simulator.simulation()
except LookupError:
    pytest.skip("a real device has HCCL", allow_module_level=True)
from trunnion_ascend.collectives import HcclCollectives  # noqa: E402
from trunnion_ascend.hardware import AscendHardware  # noqa: E402


def test_torch_npus_process_group_is_made_with_our_settings(tmp_path: Path) -> None:
    device = AscendHardware().initialize(0)
    found = AscendHardware().collectives(0, 2, f"file://{tmp_path / 'store'}")
    assert isinstance(found, HcclCollectives)
    group = found._make_group(torch.distributed.HashStore(), 0, 2)
    assert (group.rank(), group.size(), group.options._timeout) == (0, 2, TIMEOUT)
    found._group = group
    with pytest.raises(RuntimeError, match="HcclGetRootInfo"):
        found.all_reduce(torch.zeros(1, device=device))


def test_one_rank_needs_none() -> None:
    assert isinstance(AscendHardware().collectives(0, 1, ""), NoCollectives)


def test_ranks_that_cannot_meet_are_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks need a tp_init_method"):
        AscendHardware().collectives(0, 2, "")
