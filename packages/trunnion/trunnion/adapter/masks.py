"""What transformers calls a mask, kept as the function it is made from: read as facts, or made for one request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trunnion.errors import UnsupportedError

MaskFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(batch, head, query position, key position) -> whether the query sees the key."""
BEYOND = 3
"""Positions that are looked at beyond a window's edge."""
FULL_LENGTH = 64
"""Tokens over which a mask without a window is held against the causal one."""


@dataclass(frozen=True)
class Mask:
    """Handed to the model in place of a tensor: it goes to attention untouched, or its module cannot be flattened."""

    sees: MaskFunction
    local_size: int | None
    """Window or chunk, where the mask has one."""

    def window(self) -> int | None:
        """Tokens a query sees, itself included; None for all before it.

        Raises:
            UnsupportedError: the mask is neither causal nor a causal window.
        """
        size = self.local_size
        rows = range(FULL_LENGTH) if size is None else (0, 1, *range(max(size - BEYOND, 0), size + BEYOND), 2 * size)
        with torch.device("cpu"):  # models are built on the meta device, where there is nothing to see
            query = torch.tensor(sorted(set(rows))).unsqueeze(1)
            key = torch.arange(int(query.max()) + BEYOND).unsqueeze(0)
            zero = torch.zeros((), dtype=torch.long)
        seen = self.sees(zero, zero, query, key).expand(query.shape[0], key.shape[1])
        causal = key <= query
        if torch.equal(seen, causal):
            return None
        if size is not None and torch.equal(seen, causal & (query - key < size)):
            return size
        what = "no window" if size is None else f"a size of {size}"
        raise UnsupportedError(f"a mask with {what} that is neither causal nor a causal window (chunks, or both ways)")

    def tensor(self, first: int, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """[1, 1, count, first + count]: 0 where one of `count` queries, from position `first` on, sees a key, else the
        lowest number; as transformers' eager attention takes it."""
        key = torch.arange(first + count, device=device).unsqueeze(0)
        query, zero = key[0, first:].unsqueeze(1), key.new_zeros(())
        seen = self.sees(zero, zero, query, key).expand(count, first + count)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)
        return mask[None, None]


def make_mask(*_: Any, mask_function: MaskFunction, local_size: int | None = None, **__: Any) -> Mask:
    """What transformers calls to make a mask, under the adapter's name."""
    return Mask(mask_function, local_size)
