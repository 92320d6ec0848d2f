"""The simulated package's entry: the reference, its groups fit for capture, and a runner that replays every step."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from capture import SimulatedPool, SimulatedStream
from trunnion_sim.attention import TwoLevelAttentionGroup
from trunnion_sim.runner import GraphRunner

from trunnion.contract import Limits, MemoryProfile
from trunnion.interfaces.attention import AttentionSpec, Group, GroupSpec
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.hardware import Fence
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Mode, Runner
from trunnion.reference import ReferenceHardware
from trunnion.reference.captured import captured_group
from trunnion.reference.memory_profile import profile_captured_groups


class SimHardware(ReferenceHardware):
    """A simulated device: its tensors are the CPU's, its graphs are lists of operators at fixed addresses.

    Args:
        mode: how far its runners go; see `Hardware.limited_to`.
        late: graphs run when somebody waits for them, not when they are launched.
    """

    name = "sim"
    device_type = "cpu"
    execution_modes = (Mode.EAGER, Mode.PIECEWISE, Mode.FULL)

    def __init__(self, mode: Mode = Mode.FULL, *, late: bool = False) -> None:
        self.mode = mode
        self.stream = SimulatedStream(late=late)
        self.pools: list[SimulatedPool] = []
        """One per runner, in the order they were made."""

    def limited_to(self, mode: Mode) -> SimHardware:
        return SimHardware(mode, late=self.stream.late)

    def initialize(self, device_index: int) -> torch.device:
        if device_index != 0:
            raise ValueError(f"device_index {device_index} does not exist on 'sim'; choices: 0")
        return torch.device("cpu")

    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        if isinstance(spec, AttentionSpec):
            return TwoLevelAttentionGroup, None
        return captured_group(spec), None

    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        if self.mode is Mode.EAGER:
            return super().create_runner(model, groups, limits, breaks)
        self.pools.append(SimulatedPool())
        return GraphRunner(
            model, groups, limits, breaks, self.pools[-1], self.stream, full_graphs=self.mode is Mode.FULL
        )

    def record_fence(self, buffer_set: int) -> Fence | None:
        return self.stream.record() if self.stream.late else None

    def memory_profile(self, model: Model, limits: Limits) -> MemoryProfile:
        """All graphs share one pool, in which a step takes what it takes outside, and its decodes are one batch."""
        profile = super().memory_profile(model, limits)
        groups = max(profile.workspaces, profile_captured_groups(model, limits))
        return dataclasses.replace(profile, graphs=profile.activations + groups)


HARDWARE = SimHardware
