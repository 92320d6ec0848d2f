"""Collectives through torch.distributed's gloo, which runs wherever torch does."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from trunnion.interfaces.collectives import Collectives

TIMEOUT = timedelta(minutes=10)


class GlooCollectives(Collectives):
    """Joins `size` ranks at `init_method`, a torch.distributed URL (`tcp://host:port`, `file:///path`).

    It holds a process group of its own and leaves torch.distributed's default group alone.
    """

    def __init__(self, rank: int, size: int, init_method: str) -> None:
        if not init_method:
            raise ValueError(f"{size} ranks need a tp_init_method, for example tcp://127.0.0.1:29500")
        self.size = size
        store, rank, size = next(rendezvous(init_method, rank, size, timeout=TIMEOUT))
        self._group = dist.ProcessGroupGloo(store, rank, size, TIMEOUT)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks; `x` is overwritten if it is contiguous."""
        x = x.contiguous()
        self._group.allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenate along `dim`."""
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._group.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, dim=dim)

    def close(self) -> None:
        del self._group
