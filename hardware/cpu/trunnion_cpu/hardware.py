"""The CPU package's entry: the reference, with attention planned for CPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from trunnion.contract import Limits
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import AttentionSpec, EncoderSpec, Group, GroupSpec
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.hardware import EnvironmentProblem, Hardware
from trunnion.interfaces.methods import LinearMethod
from trunnion.interfaces.model import Model
from trunnion.interfaces.quantization import W8A8, GGUFBlocks, GroupedInt, Scheme
from trunnion.interfaces.runner import Runner
from trunnion.ops import registry
from trunnion.reference import ReferenceHardware
from trunnion_cpu.attention import CpuAttentionGroup
from trunnion_cpu.block_weights import TiledBlockLinearMethod
from trunnion_cpu.encoder import CpuEncoderGroup
from trunnion_cpu.kernels import kernels
from trunnion_cpu.methods import CpuLinearMethod
from trunnion_cpu.native import Absent, Native, native, native_state
from trunnion_cpu.native_attention import NativeAttentionGroup, why_not_native
from trunnion_cpu.runner import TapedRunner
from trunnion_cpu.tiled_w8a8 import TiledW8A8LinearMethod
from trunnion_cpu.tiled_weights import ISAS_OF_PAIRS, TiledGroupedLinearMethod, TiledIntLinearMethod

DISPATCH_KEY = "CPU"


class CpuHardware(ReferenceHardware):
    """Models on the host's own cores. Tensors of the host and of the device are the same."""

    name = "cpu"
    device_type = "cpu"
    weights_choices = ("auto", "native")
    activations_choices = ("auto", "int8")

    def choosing(self, *, weights: str = "auto", activations: str = "auto") -> Hardware:
        if activations == "int8" and isinstance(found := native(), Absent):
            raise UnsupportedError(
                f"activations 'int8' needs the native operators of hardware 'cpu': {found.reason}; choices: auto"
            )
        return super().choosing(weights=weights, activations=activations)

    def initialize(self, device_index: int) -> torch.device:
        if device_index != 0:
            raise ValueError(f"device_index {device_index} does not exist on 'cpu'; choices: 0")
        if registry.OPERATORS.owner(DISPATCH_KEY) != self.name:
            # Another package's key raises: running on its kernels, or on none, would go unnoticed.
            for name, kernel in kernels().items():
                registry.register(self.name, DISPATCH_KEY, name, kernel)
        return torch.device("cpu")

    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        if isinstance(spec, AttentionSpec) and isinstance(native(), Native) and why_not_native(spec) is None:
            return NativeAttentionGroup, None
        if isinstance(spec, AttentionSpec) and spec.cache_dtype is None:
            return CpuAttentionGroup, None
        if isinstance(spec, EncoderSpec):
            return CpuEncoderGroup, None
        found, reason = super().group_class(spec)
        if isinstance(spec, AttentionSpec):
            reason = f"torch attends in the model's dtype, not to a cache in {spec.cache_dtype}"
        return found, reason

    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        return TapedRunner(model, groups, limits, breaks, native(), activations=self.activations)

    def linear_method(self, scheme: Scheme | None, prefix: str) -> LinearMethod:
        found = native()
        if scheme is None and isinstance(found, Native):
            return CpuLinearMethod(found)
        if isinstance(scheme, W8A8) and isinstance(found, Native):
            return TiledW8A8LinearMethod(scheme)
        if isinstance(scheme, GroupedInt) and isinstance(found, Native) and self.activations == "int8":
            return TiledIntLinearMethod(scheme)
        if isinstance(scheme, GroupedInt) and isinstance(found, Native) and found.isa in ISAS_OF_PAIRS:
            return TiledGroupedLinearMethod(scheme)
        if isinstance(scheme, GGUFBlocks) and isinstance(found, Native):
            return TiledBlockLinearMethod(scheme)
        return super().linear_method(scheme, prefix)

    def check_environment(self) -> Sequence[EnvironmentProblem]:
        try:
            found = native()
        except UnsupportedError as error:
            return [EnvironmentProblem(what="native operators", found=str(error), needed="one of them", fatal=True)]
        if isinstance(found, Native) or found.is_wanted:
            return ()
        needed = "a C++20 compiler and cmake, once: operators run on torch, and slower, without them"
        return [EnvironmentProblem(what="native operators", found=found.reason, needed=needed, fatal=False)]

    def environment_facts(self) -> Mapping[str, str]:
        return {"native operators": native_state(native())}


HARDWARE = CpuHardware
