"""Cascade attention: two of FlashInfer's paged prefills, one over pages that requests share, and their merge.

FlashInfer's own cascade wrapper keeps schedules in memory of its own, and its merge is one more module to compile.
"""

from __future__ import annotations

import torch

from trunnion.interfaces.attention import AttentionSpec
from trunnion_cuda.levels import Levels
from trunnion_cuda.merge import merge_function
from trunnion_cuda.segments import Segments
from trunnion_cuda.workspaces import PlanMemory
from trunnion_cuda.wrappers import PrefillWrapper, prefill_wrapper, shape


class CascadeWrapper:
    """Planned once per step and run per layer, as FlashInfer's wrappers are."""

    def __init__(self, spec: AttentionSpec, device: torch.device, own: PrefillWrapper) -> None:
        self.spec = spec
        self.shared = prefill_wrapper(spec, device)
        self.own = own
        """Of the requests' own pages: a wrapper that is not planned otherwise in a step with levels."""
        self._merge = merge_function(spec.num_qo_heads, spec.head_dim, spec.dtype, device)
        self._rows = slice(0)

    def plan(self, levels: Levels, block_size: int, *, shared_memory: PlanMemory, own_memory: PlanMemory) -> None:
        """Plan both levels, each in memory of its own until the step is done."""
        self._rows = levels.rows
        shared_memory.lend_to(self.shared)
        self._plan(self.shared, levels.shared, block_size, causal=False)
        own_memory.lend_to(self.own)
        self._plan(self.own, levels.own, block_size, causal=True)

    def run(
        self,
        q: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        *,
        out: torch.Tensor,
        **scales: float,
    ) -> torch.Tensor:
        """q, out [T, num_qo_heads, head_dim]; `scales` are those that the wrappers take."""
        _, own_lse = self.own.run(q, caches, **scales, out=out, return_lse=True)
        queries = q[self._rows]
        shared, shared_lse = self.shared.run(
            queries, caches, **scales, out=torch.empty_like(out[self._rows]), return_lse=True
        )
        self._merge(out[self._rows], own_lse[self._rows], shared, shared_lse)
        return out

    def _plan(self, wrapper: PrefillWrapper, found: Segments, block_size: int, *, causal: bool) -> None:
        assert found.kv_indices is not None
        wrapper.plan(
            qo_indptr=torch.from_numpy(found.qo_indptr),
            paged_kv_indptr=torch.from_numpy(found.kv_indptr),
            paged_kv_indices=torch.from_numpy(found.kv_indices),
            paged_kv_last_page_len=torch.from_numpy(found.last_page_len),
            causal=causal,
            page_size=block_size,
            **shape(self.spec, "head_dim_qk"),
        )
