"""Modules that run once per request of a step, each on its rows and with a cache of its own: the split way.

What such a module keeps from step to step lies in the caches of `LayerState` and `LayerRows`, which the host binds.
What it is given and returns was looked at once, by the trial: which dimension of which tensor counts tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from trunnion.adapter.flat_cache import FlatCache
from trunnion.adapter.masks import Mask
from trunnion.adapter.request_cache import INDEXER, KEY, VALUE, RequestCache
from trunnion.contract import CacheTensorSpec
from trunnion.interfaces.attention import LayerRowsSpec, LayerStateSpec
from trunnion.layers.group_layer import GroupLayer
from trunnion.reference.layer_state import LayerGroup, LayerRowsGroup, LayerStateGroup, StepRequest

ROW_NAMES = (KEY, VALUE, INDEXER)


@dataclass(frozen=True)
class UnitCall:
    """One of the calls that a module gets in a forward."""

    dims: tuple[int | None, ...]
    """Of each leaf of the arguments: which dimension counts tokens; None: it is given as it is."""
    out_tree: TreeSpec
    out_leaves: tuple[Any, ...]
    """What is returned beside tensors, in the order of the tree's leaves."""
    main: int
    """Which leaf is the tensor of all tokens."""
    main_dim: int
    main_shape: tuple[int, ...]
    """Its shape but for the tokens."""
    main_dtype: torch.dtype
    others: tuple[int, ...]
    """Leaves that are tensors of one request each: handed on as they are."""
    can_batch: bool = False
    """Whether what counts tokens has a batch of one before that, and nothing else is given of one request."""


@dataclass
class UnitPlan:
    """A module that runs once per request: the calls it gets, and what it keeps."""

    module: str
    calls: list[UnitCall] = field(default_factory=list)
    kept: dict[tuple[int, str], tuple[tuple[int, ...], torch.dtype]] = field(default_factory=dict)
    """(layer, name) -> shape and dtype: of one request's state, or of one token's row."""

    @property
    def state_bytes(self) -> int:
        """What is kept of each request."""
        return self._bytes(lambda name: name not in ROW_NAMES)

    @property
    def row_bytes(self) -> int:
        """What is kept of each token."""
        return self._bytes(lambda name: name in ROW_NAMES)

    @property
    def can_batch(self) -> bool:
        """Whether requests that get a token each can be told apart by nothing but their states and rows of tensors."""
        calls = all(not call.others and call.can_batch for call in self.calls)
        return calls and self.state_bytes > 0 and not self.row_bytes

    def _bytes(self, is_counted: Callable[[str], bool]) -> int:
        kept = ((shape, dtype) for (_, name), (shape, dtype) in self.kept.items() if is_counted(name))
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in kept)


@dataclass
class PerRequest:
    """A value that each request has of its own, on its way from one such module to another."""

    values: list[Any] = field(default_factory=list)


class LayerState(GroupLayer[LayerStateGroup]):
    """The states of one layer of a module, bound like any other layer's."""


class LayerRows(GroupLayer[LayerRowsGroup]):
    """The rows of one layer of a module, bound like any other layer's."""


def make_layers(plan: UnitPlan, num_qo_heads: int) -> dict[int, list[LayerState | LayerRows]]:
    """Layer -> what holds its states and rows."""
    made: dict[int, list[LayerState | LayerRows]] = {}
    indices = sorted({layer for layer, _ in plan.kept})
    for index in indices:
        prefix = plan.module if len(indices) == 1 else f"{plan.module}.{index}"
        kept = [
            CacheTensorSpec(name=name, shape=shape, dtype=dtype)
            for (layer, name), (shape, dtype) in sorted(plan.kept.items())
            if layer == index
        ]
        states = tuple(tensor for tensor in kept if tensor.name not in ROW_NAMES)
        rows = tuple(tensor for tensor in kept if tensor.name in ROW_NAMES)
        made[index] = []
        if states:
            made[index].append(LayerState(LayerStateSpec(tensors=states), f"{prefix}.state"))
        if rows:
            made[index].append(LayerRows(LayerRowsSpec(tensors=rows, num_qo_heads=num_qo_heads), f"{prefix}.rows"))
    return made


class BoundStore:
    """Where one request of a step has its states and rows: see `Store`."""

    def __init__(self, request: int, num_cached: int, layers: Mapping[int, Sequence[LayerState | LayerRows]]) -> None:
        self._request = request
        self._num_before = num_cached
        self._layers = layers
        self._first = 0

    @property
    def num_cached(self) -> int:
        return self._num_before + self._first

    def start_at(self, first: int) -> None:
        """From here on come rows `first` ... of the request's rows in this step."""
        self._first = first

    def old_states(self, layer: int) -> dict[str, torch.Tensor]:
        states = [each for each in self._layers.get(layer, ()) if isinstance(each, LayerState)]
        return {
            tensor.name: each.group.state(each.layer_index, self._request, tensor.name)
            for each in states
            if not each.group.is_fresh(self._request)
            for tensor in each.group.spec.tensors
        }

    def new_state(self, layer: int, name: str, like: torch.Tensor) -> torch.Tensor:
        found = self._find(layer, name)
        state: torch.Tensor = found.group.state(found.layer_index, self._request, name)
        if state.shape[:-1] != like.shape[:-1]:
            raise RuntimeError(f"layer {layer} keeps {name} {list(like.shape)}, in the trial {list(state.shape)}")
        return state.zero_()

    def extend(self, layer: int, name: str, rows: torch.Tensor) -> torch.Tensor:
        found = self._find(layer, name)
        all_rows: torch.Tensor = found.group.extend(found.layer_index, self._request, name, self._first, rows)
        return all_rows

    def _find(self, layer: int, name: str) -> Any:
        for each in self._layers.get(layer, ()):
            if any(tensor.name == name for tensor in each.group.spec.tensors):
                return each
        raise RuntimeError(f"layer {layer} keeps {name}, which it did not in the trial")


class BatchStore:
    """Where several requests that go on have their states, as one batch: see `Store`."""

    num_cached = 1
    """All have begun; how far each is, is not told."""

    def __init__(self, requests: Sequence[int], layers: Mapping[int, Sequence[LayerState | LayerRows]]) -> None:
        self._requests = requests
        self._layers = layers
        self._taken: list[tuple[LayerState, str, torch.Tensor]] = []

    def old_states(self, layer: int) -> dict[str, torch.Tensor]:
        found = {}
        for each in self._layers.get(layer, ()):
            assert isinstance(each, LayerState), "modules that keep rows are not batched"
            for tensor in each.group.spec.tensors:
                found[tensor.name] = each.group.states(each.layer_index, self._requests, tensor.name)
                self._taken.append((each, tensor.name, found[tensor.name]))
        return found

    def put_back(self) -> None:
        """Each request's states where they were, as the call has left them."""
        for layer, name, states in self._taken:
            layer.group.put_states(layer.layer_index, self._requests, name, states)
        self._taken.clear()

    def new_state(self, layer: int, name: str, like: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"layer {layer} makes {name} anew of requests that have begun")

    def extend(self, layer: int, name: str, rows: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"layer {layer} keeps rows of {name}, which it did not in the trial")


class StepCaches:
    """The caches of a step's requests, for all modules that run request by request; made anew for every step."""

    def __init__(self, layers: Mapping[int, Sequence[LayerState | LayerRows]], number_of_states: int) -> None:
        self._layers = layers
        self._number_of_states = number_of_states
        self._lead = next(each for found in layers.values() for each in found)
        self._requests: tuple[StepRequest, ...] | None = None
        self.found: list[tuple[StepRequest, BoundStore, RequestCache]] = []
        self._masks: dict[tuple[int, int, int], tuple[Mask, torch.Tensor]] = {}

    def of_step(self) -> list[tuple[StepRequest, BoundStore, RequestCache]]:
        """Each request with its store and its cache."""
        group: LayerGroup = self._lead.group
        if group.requests is not self._requests:
            self._requests = group.requests
            self._masks.clear()
            self.found = []
            for index, request in enumerate(group.requests):
                store = BoundStore(index, request.num_cached, self._layers)
                self.found.append((request, store, RequestCache(store, self._number_of_states)))
        return self.found

    def of_batch(self, requests: Sequence[int]) -> tuple[BatchStore, RequestCache]:
        """Requests of the step that have begun, by their numbers in it, as one batch."""
        store = BatchStore(requests, self._layers)
        return store, RequestCache(store, self._number_of_states)

    def mask(self, mask: Mask, first: int, count: int, like: torch.Tensor) -> torch.Tensor:
        """The mask as a tensor, for `count` queries from position `first` on; one for all modules of the step."""
        key = (id(mask), first, count)
        if key not in self._masks:
            self._masks[key] = mask, mask.tensor(first, count, like.dtype, like.device)
        return self._masks[key][1]


class Unit:
    """Takes the place of a module's forward, and calls it once per request.

    Args:
        layers: what holds its states and rows.
        one_by_one: tokens of a request that has begun are given one at a time, as some modules need it.
        batched: requests that have begun and get one token are given together, in one call.
    """

    def __init__(
        self,
        plan: UnitPlan,
        module: nn.Module,
        layers: Sequence[LayerState | LayerRows],
        caches: StepCaches,
        *,
        one_by_one: bool,
        batched: bool,
    ) -> None:
        self.plan = plan
        self.next = 0
        self._forward = module.forward
        self._layers = layers
        self._caches = caches
        self._one_by_one = one_by_one
        self._batched = batched and plan.can_batch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.plan.calls[self.next % len(self.plan.calls)]
        self.next += 1
        leaves, tree = tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        constants = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        places = [isinstance(leaf, torch.Tensor) for leaf in leaves]
        others = {index: PerRequest() for index in call.others}
        work: Callable[..., torch.Tensor] = partial(self._run, call, tree, constants, places, others)
        for layer in self._layers[1:]:
            work = partial(layer.within, work)
        main = self._layers[0].run_group(work, *tensors)
        out = [others.get(index, leaf) for index, leaf in enumerate(call.out_leaves)]
        out[call.main] = main
        return tree_unflatten(out, call.out_tree)

    def _run(
        self,
        call: UnitCall,
        tree: TreeSpec,
        constants: Sequence[Any],
        places: Sequence[bool],
        others: Mapping[int, PerRequest],
        *tensors: torch.Tensor,
    ) -> torch.Tensor:
        """All requests, one after the other -> the tensor of all tokens; rows of nobody are zero."""
        given = iter(tensors)
        leaves = [next(given) if is_tensor else leaf for is_tensor, leaf in zip(places, constants, strict=True)]
        assert len(leaves) == len(call.dims), f"{self.plan.module} is given other arguments than in the trial"
        like = next(leaf for leaf, dim in zip(leaves, call.dims, strict=True) if dim is not None)
        num_rows = next(leaf.shape[dim] for leaf, dim in zip(leaves, call.dims, strict=True) if dim is not None)
        shape = (*call.main_shape[: call.main_dim], num_rows, *call.main_shape[call.main_dim :])
        out = torch.zeros(shape, dtype=call.main_dtype, device=like.device)
        for other in others.values():
            other.values.clear()
        together = self._together()
        if together:
            self._run_batch(call, tree, leaves, together, out)
        for turn, (request, store, cache, first, count) in enumerate(self._turns(together)):
            store.start_at(first)
            start = request.first_row + first
            own = [
                self._cut(leaf, dim, start, count, turn, cache, store, out)
                for leaf, dim in zip(leaves, call.dims, strict=True)
            ]
            args, kwargs = tree_unflatten(own, tree)
            found = tree_flatten(self._forward(*args, **kwargs))[0]
            out.narrow(call.main_dim, start, count).copy_(found[call.main])
            for index, other in others.items():
                other.values.append(found[index])
            cache.check()
        return out

    def _together(self) -> list[int]:
        """The step's requests that are given in one call, by their numbers in it; a single one is not worth it."""
        if not self._batched:
            return []
        found = [
            index
            for index, (request, _, _) in enumerate(self._caches.of_step())
            if request.num_cached and request.num_rows == 1
        ]
        return found if len(found) > 1 else []

    def _run_batch(
        self, call: UnitCall, tree: TreeSpec, leaves: Sequence[Any], together: Sequence[int], out: torch.Tensor
    ) -> None:
        """One call for a token each of the requests `together`, written to their rows of `out`."""
        store, cache = self._caches.of_batch(together)
        steps = [request for request, _, _ in self._caches.of_step()]
        rows = torch.tensor([steps[index].first_row for index in together], device=out.device)
        own = []
        for leaf, dim in zip(leaves, call.dims, strict=True):
            if isinstance(leaf, torch.Tensor) and dim is not None:
                own.append(leaf.index_select(dim, rows).transpose(0, dim))
            else:
                own.append(cache if isinstance(leaf, FlatCache) else leaf)
        args, kwargs = tree_unflatten(own, tree)
        found = tree_flatten(self._forward(*args, **kwargs))[0][call.main]
        out.index_copy_(call.main_dim, rows, found.transpose(0, call.main_dim))
        cache.check()
        store.put_back()

    def _turns(self, together: Sequence[int]) -> list[tuple[StepRequest, BoundStore, RequestCache, int, int]]:
        """The calls of a step, but for `together`: whose, from which of the request's rows on, and how many rows."""
        turns = []
        for index, (request, store, cache) in enumerate(self._caches.of_step()):
            if index in together:
                continue
            size = 1 if self._one_by_one and request.num_cached else request.num_rows
            turns += [(request, store, cache, first, size) for first in range(0, request.num_rows, size)]
        return turns

    def _cut(
        self,
        leaf: Any,
        dim: int | None,
        start: int,
        count: int,
        turn: int,
        cache: RequestCache,
        store: BoundStore,
        like: torch.Tensor,
    ) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf if dim is None else leaf.narrow(dim, start, count)
        if isinstance(leaf, FlatCache):
            return cache
        if isinstance(leaf, Mask):
            return self._caches.mask(leaf, store.num_cached, count, like)
        return leaf.values[turn] if isinstance(leaf, PerRequest) else leaf
