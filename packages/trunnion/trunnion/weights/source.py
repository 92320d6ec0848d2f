"""What the loader asks of a checkpoint: names, shapes and dtypes first, the data afterwards, in file order."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One tensor of a checkpoint, known without reading it."""

    shape: tuple[int, ...]
    stored: str
    """Storage type as the file names it: `BF16`, `F8_E4M3`, `Q8_0`."""
    nbytes: int
    file: str
    dtype: torch.dtype | None
    """The dtype `tensors` yields; None if torch has none for it."""


class WeightSource(Protocol):
    """A checkpoint, opened and checked, not yet read."""

    @property
    def description(self) -> str:
        """What to call it in messages."""
        ...

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """All tensors, by the Hugging Face names."""
        ...

    def tensors(self, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """The named tensors on the CPU, shard by shard; each may be a view of a mapped file: read, never write."""
        ...
