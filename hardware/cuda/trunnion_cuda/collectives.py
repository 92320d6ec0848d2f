"""Collectives through torch.distributed's NCCL, which enqueues them on the stream, so that graphs can hold them."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from trunnion.interfaces.collectives import Collectives

TIMEOUT = timedelta(minutes=10)


class NcclCollectives(Collectives):
    """Meets `size` ranks at `init_method`, a torch.distributed URL, in a process group of its own.

    Ranks meet in `join`, when all have loaded. The communicator is made by a first collective there, since none can be
    made while a graph is captured.
    """

    def __init__(self, rank: int, size: int, init_method: str, device: torch.device) -> None:
        if not init_method:
            raise ValueError(f"{size} ranks need a tp_init_method, for example tcp://127.0.0.1:29500")
        self.rank = rank
        self.size = size
        self._init_method = init_method
        self._device = device
        self._group: dist.ProcessGroupNCCL | None = None

    def join(self) -> None:
        """Meet the others, and make the communicator."""
        self.all_reduce(torch.zeros(1, device=self._device))
        torch.cuda.synchronize(self._device)

    def _joined(self) -> dist.ProcessGroupNCCL:
        if self._group is None:
            store, rank, size = next(rendezvous(self._init_method, self.rank, self.size, timeout=TIMEOUT))
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = TIMEOUT
            self._group = dist.ProcessGroupNCCL(store, rank, size, options)
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
