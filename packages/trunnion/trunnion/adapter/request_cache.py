"""The cache object that a module of transformers is given for one request: what it keeps lies in bound tensors.

What a call does to a state is transformers' own code; where the state lies is a `Store`'s affair.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, LinearAttentionLayer

CONV, RECURRENT = "conv_state", "recurrent_state"
"""Names of states, before their number in the layer."""
KEY, VALUE, INDEXER = "key", "value", "indexer_key"
"""Names of rows."""


class Store(Protocol):
    """Where one request's states and rows lie."""

    num_cached: int
    """Tokens of the request that earlier calls have seen."""

    def old_states(self, layer: int) -> dict[str, torch.Tensor]:
        """The states that earlier calls have left, [1, *shape] each, written in place; none of a fresh request."""
        ...

    def new_state(self, layer: int, name: str, like: torch.Tensor) -> torch.Tensor:
        """Zeros as large as `like` [1, *shape], where the request's state is to lie."""
        ...

    def extend(self, layer: int, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Append `rows` [n, *shape] -> all rows of the request, [num, *shape]."""
        ...


class RequestLayer(LinearAttentionLayer, CacheLayerMixin):  # type: ignore[misc]
    """What one layer keeps of one request: any of convolution and recurrent states, keys, values and indexer keys."""

    is_compileable = False
    is_croppable = False
    supports_early_init = False
    is_sliding = False

    def __init__(self, index: int, store: Store, number_of_states: int) -> None:
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)
        # Gathered anew in every call, and not kept.
        self.keys = self.values = None
        self.is_initialized = True
        self._index = index
        self._store = store
        self._num_seen = 0
        self._own: dict[tuple[str, int], torch.Tensor] = {}
        for name, state in store.old_states(index).items():
            kind, number = name.rsplit("_", 1)
            self._hold(kind, int(number), state)
            if kind == CONV:
                self.has_previous_state[int(number)] = True

    def lazy_initialization(
        self,
        conv_states: torch.Tensor | None = None,
        recurrent_states: torch.Tensor | None = None,
        state_idx: int = 0,
        conv_kernel_size: int | None = None,
    ) -> None:
        """See `LinearAttentionLayer`; the states lie in the store."""
        if conv_states is not None:
            size = conv_states.shape[-1] if conv_kernel_size is None else conv_kernel_size
            like = conv_states.new_empty(*conv_states.shape[:-1], size)
            self._hold(CONV, state_idx, self._store.new_state(self._index, f"{CONV}_{state_idx}", like))
        if recurrent_states is not None:
            name = f"{RECURRENT}_{state_idx}"
            self._hold(RECURRENT, state_idx, self._store.new_state(self._index, name, recurrent_states))

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """keys [1, Hk, n, D], values [1, Hv, n, Dv] of the request's next tokens -> those of all its tokens."""
        self._num_seen = self._store.num_cached + keys.shape[2]
        return self._extend(KEY, keys), self._extend(VALUE, values)

    def update_indexer(self, keys: torch.Tensor) -> torch.Tensor:
        """keys [1, n, D] -> those of all tokens."""
        return self._store.extend(self._index, INDEXER, keys[0]).unsqueeze(0)

    def get_seq_length(self) -> int:
        """Tokens that the layer has seen."""
        return max(self._store.num_cached, self._num_seen)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """All keys are there, from the first on."""
        return self.get_seq_length() + query_length, 0

    def get_max_length(self) -> int:
        return -1

    def check(self) -> None:
        """RuntimeError if a module has put a state elsewhere."""
        for kind, held in ((CONV, self.conv_states), (RECURRENT, self.recurrent_states)):
            for number, state in held.items():
                if state is not self._own.get((kind, number)):
                    raise RuntimeError(f"layer {self._index}: {kind} {number} is no longer where it was bound")

    def _hold(self, kind: str, number: int, state: torch.Tensor) -> None:
        self.device, self.dtype = state.device, state.dtype
        if kind == CONV:
            self.conv_states[number], self.is_conv_states_initialized[number] = state, True
            self.conv_kernel_size[number] = state.shape[-1]
        else:
            self.recurrent_states[number], self.is_recurrent_states_initialized[number] = state, True
        self._own[kind, number] = state

    def _extend(self, name: str, heads: torch.Tensor) -> torch.Tensor:
        """[1, H, n, D] -> [1, H, num, D]"""
        rows = self._store.extend(self._index, name, heads[0].transpose(0, 1))
        return rows.transpose(0, 1).unsqueeze(0)


class RequestCache(Cache):  # type: ignore[misc]
    """One request's layers, made as they are asked for."""

    def __init__(self, store: Store, number_of_states: int) -> None:
        # Not the base's: it would ask what kind of layers there are.
        self.layers = _Layers(store, number_of_states)
        self.layer_class_to_replicate = None
        self.offloading = False
        self._store = store

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """See `Cache`; of no layer in particular: whether the request has any token behind it."""
        if layer_idx is None:
            return self._store.num_cached > 0
        return super().has_previous_state(layer_idx, state_idx)  # type: ignore[no-any-return]

    def check(self) -> None:
        """RuntimeError if a module has put a state elsewhere."""
        for layer in self.layers.made():
            layer.check()


class _Layers(list[Any]):
    """As long as it is asked for."""

    def __init__(self, store: Store, number_of_states: int) -> None:
        super().__init__()
        self._make = lambda index: RequestLayer(index, store, number_of_states)
        self._found: dict[int, RequestLayer] = {}

    def __len__(self) -> int:
        return 1 << 16

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, index: Any) -> RequestLayer:
        if index not in self._found:
            self._found[index] = self._make(index)
        return self._found[index]

    def made(self) -> list[RequestLayer]:
        return list(self._found.values())
