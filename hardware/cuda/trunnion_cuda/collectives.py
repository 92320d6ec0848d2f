"""Collectives through torch.distributed's NCCL, which enqueues them on the stream, so that graphs can hold them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend

from trunnion.reference.collectives import TIMEOUT, ProcessGroupCollectives


class NcclCollectives(ProcessGroupCollectives):
    """The communicator is made by a first collective in `join`, since none can be made while a graph is captured."""

    def __init__(self, rank: int, size: int, init_method: str, device: torch.device) -> None:
        super().__init__(rank, size, init_method)
        self._device = device

    def _make_group(self, store: dist.Store, rank: int, size: int) -> Backend:
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return dist.ProcessGroupNCCL(store, rank, size, options)

    def join(self) -> None:
        """Meet the others, and make the communicator."""
        self.all_reduce(torch.zeros(1, device=self._device))
        torch.cuda.synchronize(self._device)
