"""Collectives through torch_npu's HCCL, which enqueues them on the stream, so that graphs can hold them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend
from torch_npu._C._distributed_c10d import ProcessGroupHCCL

from trunnion.reference.collectives import TIMEOUT, ProcessGroupCollectives


class HcclCollectives(ProcessGroupCollectives):
    """The communicator is made by a first collective in `join`, since none can be made while a graph is captured."""

    def __init__(self, rank: int, size: int, init_method: str, device: torch.device) -> None:
        super().__init__(rank, size, init_method)
        self._device = device

    def _make_group(self, store: dist.Store, rank: int, size: int) -> Backend:
        # Without ranks of another group, it is one by itself: ranks meet at the store.
        options = ProcessGroupHCCL.Options()
        options._timeout = TIMEOUT
        return ProcessGroupHCCL(store, rank, size, options)

    def join(self) -> None:
        """Meet the others, and make the communicator."""
        self.all_reduce(torch.zeros(1, device=self._device))
        torch.npu.synchronize(self._device)
