"""The CUDA package's entry: FlashInfer's attention, CUDA graphs, Triton kernels, NCCL; else the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch

from trunnion.contract import Limits, MemoryProfile
from trunnion.interfaces.attention import (
    AttentionSpec,
    EncoderSpec,
    Group,
    GroupSpec,
    LayerRowsSpec,
    LayerStateSpec,
    MLASpec,
    RecurrentSpec,
)
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.collectives import Collectives, NoCollectives
from trunnion.interfaces.hardware import EnvironmentProblem, Fence
from trunnion.interfaces.kv_events import KVEvents, KVEventSlots
from trunnion.interfaces.model import Model
from trunnion.interfaces.runner import Mode, Runner
from trunnion.ops import registry
from trunnion.reference import ReferenceHardware
from trunnion.reference.captured import captured_group
from trunnion.reference.stream_events import EventFence
from trunnion_cuda import environment
from trunnion_cuda.capabilities import why_not_flashinfer, why_not_flashinfer_encoder, why_not_flashinfer_mla
from trunnion_cuda.collectives import NcclCollectives
from trunnion_cuda.environment import why_no_kernels
from trunnion_cuda.kernels import kernels
from trunnion_cuda.kv_events import StreamKVEvents
from trunnion_cuda.runner import CudaGraphRunner
from trunnion_cuda.step_tuning import TuningLimits
from trunnion_cuda.workspaces import FLOAT_BYTES, INT_BYTES

DISPATCH_KEY = "CUDA"


class CudaHardware(ReferenceHardware):
    """One NVIDIA GPU per process.

    Args:
        mode: how far its runners go; see `Hardware.limited_to`.
        tuning: how much `warm_up` may time.
    """

    name = "cuda"
    device_type = "cuda"
    execution_modes = (Mode.EAGER, Mode.PIECEWISE, Mode.FULL)

    def __init__(self, mode: Mode = Mode.FULL, tuning: TuningLimits | None = None) -> None:
        self.mode = mode
        self.tuning = tuning or TuningLimits()
        self._device = torch.device("cuda", 0)
        self._fences: dict[int, EventFence] = {}

    def limited_to(self, mode: Mode) -> CudaHardware:
        return CudaHardware(mode, self.tuning)

    def check_environment(self) -> Sequence[EnvironmentProblem]:
        return environment.problems()

    def environment_facts(self) -> Mapping[str, str]:
        return environment.facts()

    def initialize(self, device_index: int) -> torch.device:
        """Select the device, and register the kernels.

        Raises:
            ValueError: there is no such device; the text says which there are.
        """
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not 0 <= device_index < count:
            choices = f"0 ... {count - 1}" if count else "none, torch finds no CUDA device"
            raise ValueError(f"device_index {device_index} does not exist on 'cuda'; choices: {choices}")
        self._device = torch.device("cuda", device_index)
        torch.cuda.set_device(self._device)
        if why_no_kernels() is None and registry.OPERATORS.owner(DISPATCH_KEY) != self.name:
            # Another package's key raises: running on its kernels, or on none, would go unnoticed.
            for name, kernel in kernels().items():
                registry.register(self.name, DISPATCH_KEY, name, kernel)
        return self._device

    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        """FlashInfer's; what it refuses on this package's Triton kernels; else the reference's, with both reasons."""
        if isinstance(spec, LayerStateSpec | LayerRowsSpec):
            return super().group_class(spec)
        reasons = []
        if not isinstance(spec, RecurrentSpec):
            reason = environment.why_no_flashinfer() or _why_not_flashinfer(spec)
            if reason is None:
                return _flashinfer_group(spec), None
            reasons.append(reason)
        found, reason = _triton_group(spec) if (absent := why_no_kernels()) is None else (None, absent)
        if found is not None:
            return found, None
        return captured_group(spec), "; ".join([*reasons, *filter(None, [reason])])

    def collectives(self, rank: int, size: int, init_method: str) -> Collectives:
        return NoCollectives() if size == 1 else NcclCollectives(rank, size, init_method, self._device)

    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        if self.mode is Mode.EAGER:
            return super().create_runner(model, groups, limits, breaks)
        full_graphs = self.mode is Mode.FULL
        return CudaGraphRunner(model, groups, limits, breaks, self._device, full_graphs=full_graphs, tuning=self.tuning)

    def memory_profile(self, model: Model, limits: Limits) -> MemoryProfile:
        """As the reference, and: graphs share one pool, in which a step takes no more than it takes outside."""
        profile = super().memory_profile(model, limits)
        graphs = 0 if self.mode is Mode.EAGER else profile.activations + profile.workspaces
        return dataclasses.replace(
            profile, graphs=graphs, workspaces=profile.workspaces + FLOAT_BYTES + 2 * INT_BYTES * num_groups(model)
        )

    def record_fence(self, buffer_set: int) -> Fence | None:
        return self._fences.setdefault(buffer_set, EventFence(torch.cuda.Event())).record()

    def kv_events(self, slots: KVEventSlots) -> KVEvents:
        """Operations of the stream: the host enqueues a step and goes on."""
        return StreamKVEvents(slots)

    def on_reference(self) -> Mapping[str, str]:
        """Operators, and the merge of levels of attention."""
        reason = why_no_kernels()
        if reason is None:
            return super().on_reference()
        return dict.fromkeys((*registry.OPERATORS.names(), "merge_states"), reason)


def _why_not_flashinfer(spec: AttentionSpec | MLASpec | EncoderSpec) -> str | None:
    if isinstance(spec, MLASpec):
        return why_not_flashinfer_mla(spec)
    return why_not_flashinfer_encoder(spec) if isinstance(spec, EncoderSpec) else why_not_flashinfer(spec)


def _flashinfer_group(spec: AttentionSpec | MLASpec | EncoderSpec) -> type[Group]:
    # Imports FlashInfer, which may be absent.
    if isinstance(spec, MLASpec):
        from trunnion_cuda.mla import FlashInferMLAGroup

        return FlashInferMLAGroup
    if isinstance(spec, EncoderSpec):
        from trunnion_cuda.encoder import FlashInferEncoderGroup

        return FlashInferEncoderGroup
    from trunnion_cuda.attention import FlashInferAttentionGroup

    return FlashInferAttentionGroup


def _triton_group(spec: GroupSpec) -> tuple[type[Group] | None, str | None]:
    """The group on this package's kernels, or why there is none for `spec`."""
    # Imports Triton, as `why_no_kernels`.
    if isinstance(spec, AttentionSpec):
        from trunnion_cuda.triton_attention import TritonAttentionGroup, why_not_triton

        reason = why_not_triton(spec)
        return (TritonAttentionGroup, None) if reason is None else (None, reason)
    if isinstance(spec, RecurrentSpec):
        from trunnion_cuda.recurrent import TritonRecurrentGroup, why_not_recurrent

        reason = why_not_recurrent(spec)
        return (TritonRecurrentGroup, None) if reason is None else (None, reason)
    if isinstance(spec, EncoderSpec):
        return None, "this package has no kernel of its own for encoders"
    from trunnion_cuda.triton_mla import TritonMLAGroup, why_not_triton_mla

    reason = why_not_triton_mla(spec)
    return (TritonMLAGroup, None) if reason is None else (None, reason)


def num_groups(model: Model) -> int:
    """Shapes of attention in a model, each of which plans in memory of its own."""
    assert isinstance(model, torch.nn.Module), f"{type(model).__name__} is not a module"
    return len({module.spec for module in model.modules() if hasattr(module, "spec")})


HARDWARE = CudaHardware
