"""States and rows of layers that compute by themselves: the groups find each request's place, and compute nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trunnion.contract import CacheTensorSpec
from trunnion.interfaces.attention import Group, GroupSpec, LayerRowsSpec, LayerStateSpec, StepInputs


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One request of a step."""

    first_row: int
    num_rows: int
    num_cached: int
    """Tokens of it that earlier steps have seen."""


class LayerGroup(Group):
    """A step's requests. A layer's work is a function, which `run` calls; it asks the group where things lie.

    Requests without rows are left out, and rows beyond the step's requests belong to nobody.
    """

    requests: tuple[StepRequest, ...] = ()

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return "layers run request by request"

    @classmethod
    def why_no_verification(cls, spec: GroupSpec) -> str | None:
        return "what a layer keeps by itself cannot be taken back"

    def plan(self, step: StepInputs) -> None:
        """Find the requests, from the host's copies."""
        counts, host = step.counts, step.host
        assert counts.lens_are_exact, "requests run one by one need exact host lengths"
        starts = host.query_start_loc[: counts.num_reqs + 1].tolist()
        seq_lens = host.seq_lens[: counts.num_reqs].tolist()
        found = []
        for index, (start, end) in enumerate(itertools.pairwise(starts)):
            if end > start:
                found.append(StepRequest(start, end - start, seq_lens[index] - (end - start)))
                self.plan_request(len(found) - 1, index, step)
        self.requests = tuple(found)

    def plan_request(self, request: int, index: int, step: StepInputs) -> None:
        """Note what request `request` of this step, number `index` of the host's, has of its own."""

    def run(
        self, layer: int, work: Callable[..., torch.Tensor], *args: Any, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`work(*args)`, in `out` if it is given."""
        result = work(*args)
        return result if out is None else out.copy_(result)


class LayerStateGroup(LayerGroup):
    """Tensors are the spec's, `[num_states, *shape]`."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, LayerStateSpec), f"states of a layer's own cannot be {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self._states: dict[int, tuple[int, bool]] = {}

    @classmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        assert isinstance(spec, LayerStateSpec), f"states of a layer's own cannot be {spec}"
        return spec.tensors

    def plan_request(self, request: int, index: int, step: StepInputs) -> None:
        group = self.tensors(step.host)
        assert group.state_indices is not None and group.has_initial_state is not None
        self._states[request] = int(group.state_indices[index, 0]), bool(group.has_initial_state[index])

    def is_fresh(self, request: int) -> bool:
        """Whether the request starts here, and what lies in its states is nobody's."""
        return not self._states[request][1]

    def state(self, layer: int, request: int, name: str) -> torch.Tensor:
        """[1, *shape]: the request's state itself, to be read and written in place."""
        index = self._states[request][0]
        return self.caches[layer][name][index : index + 1]

    def states(self, layer: int, requests: Sequence[int], name: str) -> torch.Tensor:
        """[len(requests), *shape]: a copy of their states."""
        return self.caches[layer][name].index_select(0, self._indices(requests))

    def put_states(self, layer: int, requests: Sequence[int], name: str, states: torch.Tensor) -> None:
        """Write `states` [len(requests), *shape] where theirs lie."""
        self.caches[layer][name].index_copy_(0, self._indices(requests), states)

    def _indices(self, requests: Sequence[int]) -> torch.Tensor:
        return torch.tensor([self._states[request][0] for request in requests], device=self.device)


class LayerRowsGroup(LayerGroup):
    """Tensors are the spec's by blocks, `[num_blocks, block_size, *shape]`."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, LayerRowsSpec), f"rows of a layer's own cannot be {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self._slots: dict[int, torch.Tensor] = {}
        self._blocks: dict[int, torch.Tensor] = {}

    @classmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        assert isinstance(spec, LayerRowsSpec), f"rows of a layer's own cannot be {spec}"
        return tuple(
            CacheTensorSpec(name=each.name, shape=(block_size, *each.shape), dtype=each.dtype) for each in spec.tensors
        )

    def plan_request(self, request: int, index: int, step: StepInputs) -> None:
        group = self.tensors(step.host)
        assert group.slot_mapping is not None and group.block_table is not None
        first, end = step.host.query_start_loc[index : index + 2].tolist()
        self._slots[request] = group.slot_mapping[first:end].long().to(self.device)
        self._blocks[request] = group.block_table[index].long().to(self.device)

    def extend(self, layer: int, request: int, name: str, first: int, rows: torch.Tensor) -> torch.Tensor:
        """Write `rows` [n, *shape], from the request's row `first` of this step on -> all it has, [num, *shape]."""
        cache = self.caches[layer][name]
        block_size, num_new = cache.shape[1], rows.shape[0]
        slots = self._slots[request][first : first + num_new]
        cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, rows)
        num_rows = self.requests[request].num_cached + first + num_new
        blocks = self._blocks[request][: -(-num_rows // block_size)]
        return cache.index_select(0, blocks).flatten(0, 1)[:num_rows]


def layer_group(spec: LayerStateSpec | LayerRowsSpec) -> tuple[type[Group], str]:
    """The group for `spec`, and why no package has its own."""
    found = LayerStateGroup if isinstance(spec, LayerStateSpec) else LayerRowsGroup
    return found, "its layers compute by themselves, request by request"
