"""Collectives through torch_npu's own process group over a simulated HCCL: processes that meet at a socket."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hardware.ascend.tests.ranks import run_ranks

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
    AscendHardware().initialize(0)
    found = AscendHardware().collectives(0, 2, f"file://{tmp_path / 'store'}")
    assert isinstance(found, HcclCollectives)
    group = found._make_group(torch.distributed.HashStore(), 0, 2)
    assert (group.rank(), group.size(), group.options._timeout) == (0, 2, TIMEOUT)


@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_ranks_sum_and_gather(tmp_path: Path, size: int) -> None:
    """At once and at each replay of a graph; as torch does, summed in float32 and rounded once."""
    run_ranks("hardware.ascend.tests.collective_worker", "RANK", str(size), f"file://{tmp_path / 'store'}", size=size)


def test_one_rank_needs_none() -> None:
    assert isinstance(AscendHardware().collectives(0, 1, ""), NoCollectives)


def test_ranks_that_cannot_meet_are_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks need a tp_init_method"):
        AscendHardware().collectives(0, 2, "")
