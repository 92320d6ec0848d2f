"""Collectives through torch.distributed's gloo, which runs wherever torch does."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from trunnion.interfaces.collectives import Collectives

TIMEOUT = timedelta(minutes=10)


class GlooCollectives(Collectives):
    """Meets `size` ranks at `init_method`, a torch.distributed URL (`tcp://host:port`, `file:///path`).

    It holds a process group of its own and leaves torch.distributed's default group alone. Ranks meet late, so that one
    that cannot load the model keeps no other waiting. Neither that nor a collective waits longer than `TIMEOUT`, and a
    rank that goes away is noticed at once.
    """

    def __init__(self, rank: int, size: int, init_method: str) -> None:
        if not init_method:
            raise ValueError(f"{size} ranks need a tp_init_method, for example tcp://127.0.0.1:29500")
        self.rank = rank
        self.size = size
        self._init_method = init_method
        self._group: dist.ProcessGroupGloo | None = None

    def join(self) -> None:
        self._joined()

    def _joined(self) -> dist.ProcessGroupGloo:
        if self._group is None:
            store, rank, size = next(rendezvous(self._init_method, self.rank, self.size, timeout=TIMEOUT))
            self._group = dist.ProcessGroupGloo(store, rank, size, TIMEOUT)
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
