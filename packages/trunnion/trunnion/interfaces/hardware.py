"""A hardware package's one entry: which groups, methods, collectives and runner run on its device."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from trunnion.contract import Limits, MemoryProfile
from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import Group, GroupSpec
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.collectives import Collectives
from trunnion.interfaces.kv_events import KVEvents, KVEventSlots
from trunnion.interfaces.methods import LinearMethod, MoEMethod
from trunnion.interfaces.model import Model
from trunnion.interfaces.quantization import Scheme
from trunnion.interfaces.runner import Mode, Runner


@dataclass(frozen=True, kw_only=True)
class EnvironmentProblem:
    """One thing that `trunnion env` reports: what was found, what is needed, and whether it stops `create`."""

    what: str
    found: str
    needed: str
    fatal: bool


class Fence(Protocol):
    """A mark behind work that was enqueued on the executor's stream."""

    def wait(self) -> None:
        """Block until the work is done."""
        ...


class Hardware(ABC):
    """One instance per process. A package starts from `trunnion.reference.ReferenceHardware` and overrides."""

    name: str
    """Folder and `--hardware` name: `cpu`, `cuda`, `ascend`."""
    device_type: str
    """torch's device type."""
    execution_modes: tuple[Mode, ...] = ()
    """What `limited_to` takes. Empty where there is one way to execute a step."""
    block_size_multiple: int = 1
    """Cache blocks hold a multiple of so many tokens; another `Limits.block_size` is refused."""

    weights_choices: tuple[str, ...] = ("auto",)
    """Ways to keep quantised weights that the package has, of `trunnion.config.WEIGHTS`."""
    activations_choices: tuple[str, ...] = ("auto",)
    """What rows of the package can meet integer weights in, of `trunnion.config.ACTIVATIONS`."""
    weights: str = "auto"
    activations: str = "auto"
    """What this instance was told to do, see `choosing`."""

    def choosing(self, *, weights: str = "auto", activations: str = "auto") -> Hardware:
        """This package, as it runs a model with these options; itself where they are those that it has.

        Raises:
            UnsupportedError: the package does not offer one of them.
        """
        if (weights, activations) == (self.weights, self.activations):
            return self
        chosen = copy.copy(self)
        for name, value in (("weights", weights), ("activations", activations)):
            offered: tuple[str, ...] = getattr(self, f"{name}_choices")
            if value not in offered:
                raise UnsupportedError(
                    f"{name} {value!r} is not for hardware {self.name!r}; choices: {', '.join(offered)}"
                )
            setattr(chosen, name, value)
        return chosen

    def default_threads(self, num_ranks: int) -> int:
        """Threads of the host that a rank among `num_ranks` computes with unless it is told; called on its thread."""
        return torch.get_num_threads()

    def limited_to(self, mode: Mode) -> Hardware:
        """This package with runners that go no further than `mode`, so that tests can compare its ways of execution.

        EAGER captures nothing, PIECEWISE makes no full graphs, FULL is what the package does by itself.

        Raises:
            ValueError: the package does not offer `mode`.
        """
        offered = ", ".join(offer.value for offer in self.execution_modes) or "none"
        raise ValueError(f"hardware {self.name!r} cannot be limited to {mode.value!r}; it offers {offered}")

    @property
    def uses_host_memory(self) -> bool:
        """Whether the device works on the host's own memory: then lent buffers need no upload, and are not pinned."""
        return self.device_type == "cpu"

    def check_environment(self) -> Sequence[EnvironmentProblem]:
        """Versions, drivers and compilers this package needs; never raises."""
        return ()

    def environment_facts(self) -> Mapping[str, str]:
        """What `trunnion env` says of this package beside its problems, by name; never raises."""
        return {}

    def initialize(self, device_index: int) -> torch.device:
        """Select the device of this rank and register the package's kernels; called before any tensor is made."""
        return torch.device(self.device_type, device_index)

    @abstractmethod
    def group_class(self, spec: GroupSpec) -> tuple[type[Group], str | None]:
        """The class that runs `spec`, and why it is the reference (None when it is the package's own)."""

    @abstractmethod
    def linear_method(self, scheme: Scheme | None, prefix: str) -> LinearMethod:
        """The method of the layer named `prefix`, unquantised if None; UnsupportedError names what cannot run."""

    @abstractmethod
    def moe_method(self, scheme: Scheme | None, prefix: str) -> MoEMethod:
        """As `linear_method`, for a block of experts."""

    @abstractmethod
    def collectives(self, rank: int, size: int, init_method: str) -> Collectives:
        """Join the tensor-parallel group at `init_method` (a torch.distributed URL)."""

    @abstractmethod
    def create_runner(self, model: Model, groups: Sequence[Group], limits: Limits, breaks: BreakPoints) -> Runner:
        """The package's runner, for steps within `limits`; `breaks` are the points where the model leaves a graph."""

    @abstractmethod
    def memory_profile(self, model: Model, limits: Limits) -> MemoryProfile:
        """Upper bounds for a worst-case step."""

    def record_fence(self, buffer_set: int) -> Fence | None:
        """A fence behind everything enqueued so far; None where work is done when its call returns.

        At most one step of each buffer set is in flight, so that one event per set will do.
        """
        return None

    @abstractmethod
    def kv_events(self, slots: KVEventSlots) -> KVEvents:
        """How layers wait for and signal the host's events of a step; called once, before the first step."""

    @property
    def synchronous(self) -> bool:
        """Whether there are no fences: every step is done when its call returns."""
        return type(self).record_fence is Hardware.record_fence

    def on_reference(self) -> Mapping[str, str]:
        """Operators that still run on the reference here, with the reason; printed by `warm_up`'s report."""
        return {}
