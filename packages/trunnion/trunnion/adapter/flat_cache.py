"""The cache object that a flattened forward is given: it holds nothing, and refuses what would have to be held."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache

from trunnion.adapter.latent import Handed
from trunnion.errors import UnsupportedError


class FlatCache(Cache):  # type: ignore[misc]
    """Keys and values pass through to attention, which has caches of its own; there are no lengths and no states."""

    def __init__(self, handed: Handed) -> None:
        self._handed = handed
        # Not the base's: it would ask what kind of layers there are.
        self.layers: list[Any] = []
        self.layer_class_to_replicate = None
        self.offloading = False

    def update(self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """What came, and attention may ask for."""
        self._handed.last = key, value
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return query_length, 0

    def has_previous_state(self, *_: Any, **__: Any) -> bool:
        return False

    def refuse(self, *_: Any, **__: Any) -> NoReturn:
        """Any call that keeps something from step to step."""
        raise UnsupportedError("a layer keeps state of its own between steps, beside keys and values")

    get_conv_state = get_recurrent_state = update_conv_state = update_recurrent_state = update_indexer = refuse
