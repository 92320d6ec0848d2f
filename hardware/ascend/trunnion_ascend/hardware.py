"""The Ascend package's entry: NPU graphs, events of streams; the rest on the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from trunnion.contract import Limits, MemoryProfile
from trunnion.interfaces.attention import AttentionSpec, Group, GroupSpec, MLASpec
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.hardware import Fence
from trunnion.interfaces.kv_events import KVEvents, KVEventSlots
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Mode, Runner
from trunnion.reference import ReferenceHardware
from trunnion.reference.captured import CapturedAttentionGroup, CapturedMLAGroup, CapturedRecurrentGroup
from trunnion_ascend.fences import EventFence
from trunnion_ascend.kv_events import StreamKVEvents
from trunnion_ascend.runner import NpuGraphRunner

SEGMENT_BYTES = 2 * (2 + 20) * 2**20
"""What torch_npu's allocator takes at a time, for small tensors and for large ones, in the graphs' pool and outside."""


class AscendHardware(ReferenceHardware):
    """One NPU per process.

    Args:
        mode: how far its runners go; see `Hardware.limited_to`.
    """

    name = "ascend"
    device_type = "npu"
    execution_modes = (Mode.EAGER, Mode.PIECEWISE, Mode.FULL)

    def __init__(self, mode: Mode = Mode.FULL) -> None:
        self.mode = mode
        self._device = torch.device("npu", 0)
        self._fences: dict[int, EventFence] = {}

    def limited_to(self, mode: Mode) -> AscendHardware:
        return AscendHardware(mode)

    def initialize(self, device_index: int) -> torch.device:
        """Select the device.

        Raises:
            ValueError: there is no such device; the text says which there are.
        """
        count = torch.npu.device_count() if torch.npu.is_available() else 0
        if not 0 <= device_index < count:
            choices = f"0 ... {count - 1}" if count else "none, torch_npu finds no NPU"
            raise ValueError(f"device_index {device_index} does not exist on 'ascend'; choices: {choices}")
        self._device = torch.device("npu", device_index)
        torch.npu.set_device(self._device)
        return self._device

    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        """The reference's groups, fit for graphs."""
        return captured_group(spec), super().group_class(spec)[1]

    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        if self.mode is Mode.EAGER:
            return super().create_runner(model, groups, limits, breaks)
        full_graphs = self.mode is Mode.FULL
        return NpuGraphRunner(model, groups, limits, breaks, self._device, full_graphs=full_graphs)

    def memory_profile(self, model: Model, limits: Limits) -> MemoryProfile:
        """As the reference, and: graphs share one pool, in which a step takes no more than it takes outside."""
        profile = super().memory_profile(model, limits)
        graphs = 0 if self.mode is Mode.EAGER else profile.activations + profile.workspaces + SEGMENT_BYTES
        return dataclasses.replace(profile, graphs=graphs)

    def record_fence(self, buffer_set: int) -> Fence | None:
        return self._fences.setdefault(buffer_set, EventFence()).record()

    def kv_events(self, slots: KVEventSlots) -> KVEvents:
        """Operations of the stream: the host enqueues a step and goes on."""
        return StreamKVEvents(slots)


def captured_group(spec: GroupSpec) -> type[Group]:
    """The reference's group, fit for graphs."""
    if isinstance(spec, AttentionSpec):
        return CapturedAttentionGroup
    return CapturedMLAGroup if isinstance(spec, MLASpec) else CapturedRecurrentGroup


HARDWARE = AscendHardware
