"""Paged attention on torch_npu's fused operator: planned once per step from the host's copies, updated in graphs.

Rows that have no slot (placeholders of short drafts, padding of a graph) are queries of a run without keys: what lies
in the cache at their positions is in nobody's range of keys.
"""

from __future__ import annotations

from functools import partial

import torch

from trunnion.contract import LayerCaches
from trunnion.interfaces.attention import GroupSpec, StepInputs
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion.reference.checks import check_caches, check_rows
from trunnion_ascend.cache_writes import write_cache
from trunnion_ascend.checks import check_block_size
from trunnion_ascend.fused import FusedAttention, Keys, Shape
from trunnion_ascend.task_updates import CallsAtOnce, Tasks


class FusedAttentionGroup(ReferenceAttentionGroup):
    """Caches as the reference has them. Sinks are rounded to bfloat16, as the operator takes them."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self.tasks: Tasks = CallsAtOnce()
        shape = Shape(
            num_query_heads=self.spec.num_qo_heads,
            num_kv_heads=self.spec.num_kv_heads,
            scale=self.spec.scale,
            window=self.spec.window,
        )
        self._fused = FusedAttention(shape, device)
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._keys: list[Keys] = []

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def bind_kv_cache(self, cache_index: int, caches: LayerCaches) -> None:
        """As `Group.bind_kv_cache`.

        Raises:
            ValueError: a cache does not have the heads of the group, or blocks of a size that the operator takes.
        """
        check_caches(self.spec, caches)
        check_block_size(caches[0]["k_cache"].shape[1])
        super().bind_kv_cache(cache_index, caches)
        self._keys = [Keys(key=layer["k_cache"].flatten(2), value=layer["v_cache"].flatten(2)) for layer in caches]

    def plan(self, step: StepInputs) -> None:
        """Find the runs of the step; errors are those of `FusedAttention.plan`."""
        slots = self.tensors(step.device).slot_mapping
        assert slots is not None, "attention groups have slots"
        self._slots = slots
        self._fused.plan(step, self.cache_index)

    def run(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `AttentionGroup.run`; ValueError for arguments that are not the group's."""
        check_rows(self.spec, q, k, v, sinks, out)
        cache = self.caches[layer]
        write_cache(k, v, cache["k_cache"], cache["v_cache"], self._slots)
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        count = self._fused.num_rows
        if count < out.shape[0]:
            out[count:] = 0
        if count:
            given = [q.contiguous(), out] if sinks is None else [q.contiguous(), out, sinks.to(torch.bfloat16)]
            self._fused.prepare(self._keys[layer], given[0], sinks=None if sinks is None else given[2])
            self.tasks.run(partial(self._attend, layer), *given)
        return out

    def _attend(self, layer: int, q: torch.Tensor, out: torch.Tensor, sinks: torch.Tensor | None = None) -> None:
        self._fused.attend(self._keys[layer], q, out, sinks=sinks)
