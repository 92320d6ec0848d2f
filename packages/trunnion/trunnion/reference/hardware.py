"""The hardware package that all others inherit: every group, method, collective and the runner in plain torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.contract import Limits, MemoryProfile
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import (
    AttentionSpec,
    EncoderSpec,
    Group,
    GroupSpec,
    LayerRowsSpec,
    LayerStateSpec,
    MLASpec,
)
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.collectives import Collectives, NoCollectives
from trunnion.interfaces.hardware import Hardware
from trunnion.interfaces.kv_events import KVEvents, KVEventSlots
from trunnion.interfaces.methods import LinearMethod, MoEMethod
from trunnion.interfaces.model import Model
from trunnion.interfaces.quantization import MXFP4, BlockFP8, GGUFBlocks, GroupedInt, Scheme
from trunnion.interfaces.runner import Runner
from trunnion.ops.registry import OPERATORS
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion.reference.collectives import GlooCollectives
from trunnion.reference.encoder import ReferenceEncoderGroup
from trunnion.reference.gguf_block_method import GGUFBlockLinearMethod
from trunnion.reference.grouped_int_methods import GroupedIntLinearMethod
from trunnion.reference.grouped_int_moe_method import GroupedIntMoEMethod
from trunnion.reference.host_threads import threads_of_rank
from trunnion.reference.kv_events import HostKVEvents
from trunnion.reference.layer_state import layer_group
from trunnion.reference.linear_method import UnquantizedLinearMethod
from trunnion.reference.memory_profile import profile_memory
from trunnion.reference.mla import ReferenceMLAGroup
from trunnion.reference.moe_method import UnquantizedMoEMethod
from trunnion.reference.mxfp4_moe_method import MXFP4MoEMethod
from trunnion.reference.quantised_methods import BlockFP8LinearMethod, W8A8LinearMethod
from trunnion.reference.quantised_moe_methods import BlockFP8MoEMethod, W8A8MoEMethod
from trunnion.reference.recurrent import ReferenceRecurrentGroup
from trunnion.reference.runner import EagerRunner


class ReferenceHardware(Hardware):
    """Runs everything on the reference, on any device. A package inherits it and replaces piece by piece."""

    name = "reference"
    device_type = "cpu"

    def default_threads(self, num_ranks: int) -> int:
        """See `trunnion.reference.host_threads`."""
        return threads_of_rank(num_ranks)

    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        if isinstance(spec, LayerStateSpec | LayerRowsSpec):
            return layer_group(spec)
        reason = f"package {self.name!r} has no group of its own for {type(spec).__name__}"
        if isinstance(spec, AttentionSpec):
            return ReferenceAttentionGroup, reason
        if isinstance(spec, MLASpec):
            return ReferenceMLAGroup, reason
        if isinstance(spec, EncoderSpec):
            return ReferenceEncoderGroup, reason
        return ReferenceRecurrentGroup, reason

    def linear_method(self, scheme: Scheme | None, prefix: str) -> LinearMethod:
        if isinstance(scheme, BlockFP8):
            return BlockFP8LinearMethod(scheme)
        if isinstance(scheme, GroupedInt):
            return GroupedIntLinearMethod(scheme)
        if isinstance(scheme, GGUFBlocks):
            return GGUFBlockLinearMethod(scheme)
        if isinstance(scheme, MXFP4):
            raise UnsupportedError(f"{prefix}: a linear layer in MXFP4 is not supported; choices: experts")
        return UnquantizedLinearMethod() if scheme is None else W8A8LinearMethod(scheme)

    def moe_method(self, scheme: Scheme | None, prefix: str) -> MoEMethod:
        if isinstance(scheme, BlockFP8):
            return BlockFP8MoEMethod(scheme)
        if isinstance(scheme, GroupedInt):
            return GroupedIntMoEMethod(scheme)
        if isinstance(scheme, MXFP4):
            return MXFP4MoEMethod()
        if isinstance(scheme, GGUFBlocks):
            raise UnsupportedError(f"{prefix}: experts in blocks of GGUF are not supported; choices: linear layers")
        return UnquantizedMoEMethod() if scheme is None else W8A8MoEMethod(scheme)

    def collectives(self, rank: int, size: int, init_method: str) -> Collectives:
        return NoCollectives() if size == 1 else GlooCollectives(rank, size, init_method)

    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        return EagerRunner(model, groups, limits)

    def memory_profile(self, model: Model, limits: Limits) -> MemoryProfile:
        """See `trunnion.reference.memory_profile`."""
        assert isinstance(model, nn.Module), f"{type(model).__name__} is not a module"
        return profile_memory(model, limits)

    def kv_events(self, slots: KVEventSlots) -> KVEvents:
        """See `trunnion.reference.kv_events`."""
        return HostKVEvents(slots, None if self.synchronous else self.record_fence)

    def on_reference(self) -> Mapping[str, str]:
        own = OPERATORS.registered(torch._C._dispatch_key_for_device(self.device_type))
        reason = f"package {self.name!r} registers no kernel"
        return {name: reason for name in OPERATORS.names() if name not in own}
