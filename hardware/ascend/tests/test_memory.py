"""What the host is promised of memory: graphs, the fused operator's workspace, and the reference's groups in graphs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from tests.conformance.tiny_llama import write_tiny_llama

from trunnion.config import BuildContext, ExecutorConfig
from trunnion.contract import Limits, MemoryProfile
from trunnion.interfaces.runner import Mode
from trunnion.layers.attention import Attention
from trunnion.reference.memory_profile import profile_captured_groups
from trunnion.runner.model_executor import ModelExecutor
from trunnion_ascend.hardware import AscendHardware
from trunnion_ascend.memory import FUSED_BYTES, MASK_BYTES, SEGMENT_BYTES, with_graphs

LIMITS = Limits(max_num_tokens=128, max_num_seqs=64, max_model_len=64, max_logits_rows=8, block_size=16)


def profile_of(folder: Path, mode: Mode, dtype: str, limits: Limits = LIMITS) -> tuple[MemoryProfile, ModelExecutor]:
    config = ExecutorConfig(model=write_tiny_llama(folder, head_dim=64), hardware="ascend", limits=limits, dtype=dtype)
    executor = ModelExecutor.create(config, AscendHardware(mode))
    return executor.memory_profile(), executor


def test_the_fused_operator_has_room_to_work_in(tmp_path: Path) -> None:
    """And its groups need no room for scores in a graph, however many requests there are."""
    eager, _ = profile_of(tmp_path, Mode.EAGER, "bfloat16")
    full, executor = profile_of(tmp_path, Mode.FULL, "bfloat16")
    few, _ = profile_of(tmp_path, Mode.FULL, "bfloat16", dataclasses.replace(LIMITS, max_num_seqs=1))
    assert eager.graphs == 0
    assert eager.workspaces == full.workspaces > FUSED_BYTES + MASK_BYTES
    assert full.graphs == few.graphs
    assert full.graphs >= FUSED_BYTES + SEGMENT_BYTES + full.activations
    assert isinstance(executor.model, torch.nn.Module)
    assert profile_captured_groups(executor.model, LIMITS, lambda spec: False) == 0


class TwoGroups(torch.nn.Module):
    """A layer that sees all keys, and two that see a window of them."""

    def __init__(self) -> None:
        super().__init__()
        context = BuildContext(hardware=AscendHardware(), dtype=torch.bfloat16)
        windows = (None, 8, 8)
        self.layers = torch.nn.ModuleList(
            Attention(2, 64, 1, 1.0, window=window, ctx=context, prefix=f"layers.{index}")
            for index, window in enumerate(windows)
        )


def test_each_group_keeps_a_workspace_in_full_graphs_and_all_share_one_elsewhere() -> None:
    nothing = MemoryProfile(weights=0, activations=0)
    eager, piecewise, full = (
        with_graphs(nothing, TwoGroups(), LIMITS, mode, lambda spec: True)
        for mode in (Mode.EAGER, Mode.PIECEWISE, Mode.FULL)
    )
    assert eager.workspaces == piecewise.workspaces == full.workspaces == FUSED_BYTES + 2 * MASK_BYTES
    assert piecewise.graphs == SEGMENT_BYTES
    assert full.graphs == SEGMENT_BYTES + 2 * FUSED_BYTES


def test_groups_of_the_reference_have_room_for_all_decodes_at_once(tmp_path: Path) -> None:
    full, executor = profile_of(tmp_path, Mode.FULL, "float32")
    piecewise, _ = profile_of(tmp_path, Mode.PIECEWISE, "float32")
    assert isinstance(executor.model, torch.nn.Module)
    captured = profile_captured_groups(executor.model, LIMITS)
    assert full.graphs == full.activations + captured + SEGMENT_BYTES > piecewise.graphs
    assert full.workspaces == piecewise.workspaces < FUSED_BYTES


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("mode", [Mode.PIECEWISE, Mode.FULL], ids=lambda mode: mode.value)
def test_graphs_take_no_more(tmp_path: Path, mode: Mode, dtype: str) -> None:
    promised, executor = profile_of(tmp_path, mode, dtype)
    executor.allocate_kv_cache([300])
    report = executor.warm_up()
    assert 0 < report.bytes <= promised.graphs
