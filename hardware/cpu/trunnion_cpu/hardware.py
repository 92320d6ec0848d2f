"""The CPU package's entry: the reference, with attention planned for CPUs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.contract import Limits
from trunnion.interfaces.attention import AttentionSpec, EncoderSpec, Group, GroupSpec
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Runner
from trunnion.ops import registry
from trunnion.reference import ReferenceHardware
from trunnion_cpu.attention import CpuAttentionGroup
from trunnion_cpu.encoder import CpuEncoderGroup
from trunnion_cpu.kernels import KERNELS
from trunnion_cpu.runner import TapedRunner

DISPATCH_KEY = "CPU"


class CpuHardware(ReferenceHardware):
    """Models on the host's own cores. Tensors of the host and of the device are the same."""

    name = "cpu"
    device_type = "cpu"

    def initialize(self, device_index: int) -> torch.device:
        if device_index != 0:
            raise ValueError(f"device_index {device_index} does not exist on 'cpu'; choices: 0")
        if registry.OPERATORS.owner(DISPATCH_KEY) != self.name:
            # Another package's key raises: running on its kernels, or on none, would go unnoticed.
            for name, kernel in KERNELS.items():
                registry.register(self.name, DISPATCH_KEY, name, kernel)
        return torch.device("cpu")

    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        if isinstance(spec, AttentionSpec) and spec.cache_dtype is None:
            return CpuAttentionGroup, None
        if isinstance(spec, EncoderSpec):
            return CpuEncoderGroup, None
        found, reason = super().group_class(spec)
        if isinstance(spec, AttentionSpec):
            reason = f"torch attends in the model's dtype, not to a cache in {spec.cache_dtype}"
        return found, reason

    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        return TapedRunner(model, groups, limits, breaks)


HARDWARE = CpuHardware
