"""The Ascend package's entry: NPU graphs, events of streams, torch_npu's fused attention; else the reference."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn

from trunnion.contract import Limits, MemoryProfile
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
from trunnion.interfaces.hardware import EnvironmentProblem, Fence
from trunnion.interfaces.kv_events import KVEvents, KVEventSlots
from trunnion.interfaces.methods import LinearMethod, MoEMethod
from trunnion.interfaces.model import Model
from trunnion.interfaces.quantization import W8A8, GroupedInt, Scheme
from trunnion.interfaces.runner import Mode, Runner
from trunnion.ops import registry
from trunnion.reference import ReferenceHardware
from trunnion.reference.captured import captured_group
from trunnion.reference.stream_events import EventFence
from trunnion_ascend import environment
from trunnion_ascend.capabilities import BLOCK_SIZE_MULTIPLE, why_not_fused, why_not_fused_encoder, why_not_fused_mla
from trunnion_ascend.float8 import refuse_cache, refuse_scheme
from trunnion_ascend.graph_budget import GraphBudget
from trunnion_ascend.kernels import kernels, why_not
from trunnion_ascend.kv_events import StreamKVEvents
from trunnion_ascend.memory import with_graphs
from trunnion_ascend.soc import Soc, soc_of

if TYPE_CHECKING:
    from trunnion_ascend.runner import NpuGraphRunner

DISPATCH_KEY = "PrivateUse1"


class AscendHardware(ReferenceHardware):
    """One NPU per process.

    Args:
        mode: how far its runners go; see `Hardware.limited_to`.
    """

    name = "ascend"
    device_type = "npu"
    execution_modes = (Mode.EAGER, Mode.PIECEWISE, Mode.FULL)
    block_size_multiple = BLOCK_SIZE_MULTIPLE

    def __init__(self, mode: Mode = Mode.FULL) -> None:
        self.mode = mode
        self._index = 0
        self._fences: dict[int, EventFence] = {}
        self._num_domains = 0
        self._runners: weakref.WeakSet[NpuGraphRunner] = weakref.WeakSet()

    def limited_to(self, mode: Mode) -> AscendHardware:
        return AscendHardware(mode)

    def check_environment(self) -> Sequence[EnvironmentProblem]:
        return environment.problems()

    def environment_facts(self) -> Mapping[str, str]:
        return environment.facts()

    @property
    def soc(self) -> Soc:
        """What the device is; ValueError if it is of a family that this package does not know."""
        return soc_of(torch.npu.get_device_name(self._index))

    def initialize(self, device_index: int) -> torch.device:
        """Select the device, and register the kernels.

        Raises:
            ValueError: there is no such device, or it is of an unknown family; the text says which there are.
        """
        count = environment.num_devices()
        if not 0 <= device_index < count:
            choices = f"0 ... {count - 1}" if count else f"none, {environment.why_no_device()}"
            raise ValueError(f"device_index {device_index} does not exist on 'ascend'; choices: {choices}")
        soc = soc_of(torch.npu.get_device_name(device_index))
        self._index = device_index
        device = torch.device("npu", device_index)
        torch.npu.set_device(device)
        if registry.OPERATORS.owner(DISPATCH_KEY) != self.name:
            # Another package's key raises: running on its kernels, or on none, would go unnoticed.
            for name, kernel in kernels(soc).items():
                registry.register(self.name, DISPATCH_KEY, name, kernel)
        return device

    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        """The fused operator's; what it cannot run on the reference's, fit for graphs, with the reason.

        Raises:
            UnsupportedError: a cache in float8 on a chip without it.
        """
        if isinstance(spec, LayerStateSpec | LayerRowsSpec):
            return super().group_class(spec)
        refuse_cache(spec, self.soc)
        if isinstance(spec, AttentionSpec):
            reason = why_not_fused(spec, self.soc)
        elif isinstance(spec, MLASpec):
            reason = why_not_fused_mla(spec, self.soc)
        elif isinstance(spec, EncoderSpec):
            reason = why_not_fused_encoder(spec, self.soc)
        else:
            reason = super().group_class(spec)[1]
        return (_fused_group(spec), None) if reason is None else (captured_group(spec), reason)

    def linear_method(self, scheme: Scheme | None, prefix: str) -> LinearMethod:
        """With weights laid out for torch_npu's products where that pays, or where the chip needs it.

        Raises:
            UnsupportedError: weights in float8 on a chip without it; the text names layer, scheme, chip and choices.
        """
        refuse_scheme(scheme, prefix, self.soc)
        # Imports torch_npu, which cannot be imported without CANN.
        from trunnion_ascend.methods import FractalLinearMethod, Int8LinearMethod
        from trunnion_ascend.packed_weights import PackedLinearMethod

        if isinstance(scheme, GroupedInt) and self.soc.has_packed_weights:
            return PackedLinearMethod(scheme)
        if isinstance(scheme, W8A8) and self.soc.has_token_scales:
            return Int8LinearMethod(scheme)
        if scheme is None and self.soc.needs_fractal:
            return FractalLinearMethod()
        return super().linear_method(scheme, prefix)

    def moe_method(self, scheme: Scheme | None, prefix: str) -> MoEMethod:
        """With weights of int8 laid out for the grouped products; UnsupportedError as of `linear_method`."""
        refuse_scheme(scheme, prefix, self.soc)
        from trunnion_ascend.methods import Int8MoEMethod

        if isinstance(scheme, W8A8) and self.soc.has_token_scales and self.soc.has_expert_operators:
            return Int8MoEMethod(scheme)
        return super().moe_method(scheme, prefix)

    def collectives(self, rank: int, size: int, init_method: str) -> Collectives:
        self._num_domains = int(size > 1)
        if size == 1:
            return NoCollectives()
        # Imports torch_npu, which cannot be imported without CANN.
        from trunnion_ascend.collectives import HcclCollectives

        return HcclCollectives(rank, size, init_method, torch.device("npu", self._index))

    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        if self.mode is Mode.EAGER:
            return super().create_runner(model, groups, limits, breaks)
        # Imports torch_npu, which cannot be imported without CANN.
        from trunnion_ascend.runner import NpuGraphRunner

        full_graphs, device = self.mode is Mode.FULL, torch.device("npu", self._index)
        runner = NpuGraphRunner(
            model, groups, limits, breaks, device, full_graphs=full_graphs, budget=self.graph_budget()
        )
        self._runners.add(runner)
        return runner

    def graph_budget(self) -> GraphBudget:
        """The device's streams and events, less what the runners of this process take."""
        return GraphBudget(
            streams=self.soc.max_streams,
            events=self.soc.max_events,
            taken=sum(runner.streams for runner in self._runners),
            events_taken=sum(runner.events for runner in self._runners),
            num_domains=self._num_domains,
        )

    def memory_profile(self, model: Model, limits: Limits) -> MemoryProfile:
        """See `trunnion_ascend.memory`."""
        assert isinstance(model, nn.Module), f"{type(model).__name__} is not a module"
        profile = super().memory_profile(model, limits)
        return with_graphs(profile, model, limits, self.mode, lambda spec: self.group_class(spec)[1] is None)

    def record_fence(self, buffer_set: int) -> Fence | None:
        return self._fences.setdefault(buffer_set, EventFence(torch.npu.Event())).record()

    def kv_events(self, slots: KVEventSlots) -> KVEvents:
        """Operations of the stream: the host enqueues a step and goes on."""
        return StreamKVEvents(slots)

    def on_reference(self) -> Mapping[str, str]:
        """With the chip's reason where it has no operator."""
        return {**super().on_reference(), **why_not(self.soc)}


def _fused_group(spec: GroupSpec) -> type[Group]:
    # Imports torch_npu, as the runner does.
    from trunnion_ascend.attention import FusedAttentionGroup
    from trunnion_ascend.encoder import FusedEncoderGroup
    from trunnion_ascend.mla import FusedMLAGroup

    if isinstance(spec, EncoderSpec):
        return FusedEncoderGroup
    return FusedMLAGroup if isinstance(spec, MLASpec) else FusedAttentionGroup


HARDWARE = AscendHardware
