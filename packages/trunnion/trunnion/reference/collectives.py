"""Collectives through a process group of torch.distributed; gloo's runs wherever torch does."""

from __future__ import annotations

from abc import abstractmethod
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch.distributed.rendezvous import rendezvous

from trunnion.interfaces.collectives import Collectives

TIMEOUT = timedelta(minutes=10)


class ProcessGroupCollectives(Collectives):
    """Meets `size` ranks at `init_method`, a torch.distributed URL (`tcp://host:port`, `file:///path`).

    It holds a process group of its own and leaves torch.distributed's default group alone. Ranks meet late, so that one
    that cannot load the model keeps no other waiting. Neither that nor a collective waits longer than `TIMEOUT`.
    """

    def __init__(self, rank: int, size: int, init_method: str) -> None:
        if not init_method:
            raise ValueError(f"{size} ranks need a tp_init_method, for example tcp://127.0.0.1:29500")
        self.rank = rank
        self.size = size
        self._init_method = init_method
        self._group: Backend | None = None

    @abstractmethod
    def _make_group(self, store: dist.Store, rank: int, size: int) -> Backend:
        """The process group of the ranks that meet at `store`."""

    def join(self) -> None:
        self._joined()

    def _joined(self) -> Backend:
        if self._group is None:
            self._group = self._make_group(*next(rendezvous(self._init_method, self.rank, self.size, timeout=TIMEOUT)))
        return self._group

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sum over ranks; `x` is overwritten if it is contiguous."""
        x = x.contiguous()
        self._joined().allreduce([x]).wait()
        return x

    def all_gather(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """Concatenate along `dim`."""
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        self._joined().allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, dim=dim)

    def close(self) -> None:
        self._group = None


class GlooCollectives(ProcessGroupCollectives):
    """Gloo's, which notices at once a rank that goes away."""

    def _make_group(self, store: dist.Store, rank: int, size: int) -> Backend:
        return dist.ProcessGroupGloo(store, rank, size, TIMEOUT)
