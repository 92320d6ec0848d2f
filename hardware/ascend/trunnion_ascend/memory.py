"""Upper bounds of memory beside the reference's: graphs in one pool, and what CANN's attention works in."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import nn

from trunnion.contract import Limits, MemoryProfile
from trunnion.interfaces.attention import GroupSpec
from trunnion.interfaces.runner import Mode
from trunnion.layers.group_layer import GroupLayer
from trunnion.reference.memory_profile import profile_captured_groups

SEGMENT_BYTES = 2 * (2 + 20) * 2**20
"""What torch_npu's allocator takes at a time, for small tensors and for large ones, in the graphs' pool and outside."""
FUSED_BYTES = 128 * 2**20
"""Workspace of the fused operator: 16 to 32 MiB of the runtime's, and some per core (hicann/ops-transformer,
incre_flash_attention_tiling.cpp and prompt_flash_attention_tiling.cpp), which is not known before it is asked for."""
MASK_BYTES = 2048 * 2048
"""Of each group that runs on it."""


def with_graphs(
    profile: MemoryProfile, model: nn.Module, limits: Limits, mode: Mode, is_fused: Callable[[GroupSpec], bool]
) -> MemoryProfile:
    """The profile of an eager step on the reference -> that of this package.

    Graphs share one pool, in which a step takes no more than it takes outside, but for the reference's groups in full
    graphs. Workspaces of full graphs stay from the capture on, one for each group; elsewhere all calls take the same.

    Args:
        is_fused: whether a group runs on the fused operator.
    """
    specs = {module.spec for module in model.modules() if isinstance(module, GroupLayer)}
    num_fused = sum(map(is_fused, specs))
    fused = FUSED_BYTES if num_fused else 0
    workspaces = profile.workspaces + fused + MASK_BYTES * num_fused
    if mode is Mode.EAGER:
        return dataclasses.replace(profile, workspaces=workspaces)
    graphs = profile.activations + profile.workspaces
    if mode is Mode.FULL:
        captured = profile_captured_groups(model, limits, lambda spec: not is_fused(spec))
        graphs = profile.activations + max(profile.workspaces, captured) + FUSED_BYTES * num_fused
    return dataclasses.replace(profile, workspaces=workspaces, graphs=graphs + SEGMENT_BYTES)
