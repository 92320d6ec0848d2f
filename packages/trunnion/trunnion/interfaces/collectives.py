"""Collectives inside a model, over the ranks of one tensor-parallel group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch


class Collectives(ABC):
    """The collectives a model needs. Every rank calls them in the same order, a rank without tokens included."""

    @abstractmethod
    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks, any shape; may return `x` itself, overwritten."""

    @abstractmethod
    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenate the ranks' tensors along `dim`; all have the same shape."""

    def join(self) -> None:
        """Meet the other ranks, all of which have loaded by then; a collective does it by itself if nobody has."""
        return None

    def close(self) -> None:
        """Leave the group."""
        return None


class NoCollectives(Collectives):
    """One rank: every collective is the identity."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x


@dataclass(frozen=True, kw_only=True)
class ParallelGroup:
    """This rank's place in its tensor-parallel group."""

    rank: int = 0
    size: int = 1
    collectives: Collectives = NoCollectives()

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} is outside a group of {self.size}")

    def divide(self, count: int, what: str) -> int:
        """`count / size`, or a ValueError that names `what`."""
        if count % self.size:
            raise ValueError(f"{what} {count} cannot be divided over {self.size} ranks")
        return count // self.size
