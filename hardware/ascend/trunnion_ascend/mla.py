"""Latent attention on torch_npu's fused operator: every head attends to one latent key, which is its value too.

The operator takes the latent and the rotated part of queries and keys as tensors of their own, contiguous, and runs of
up to 16 queries, so that longer prompts are several runs.
"""

from __future__ import annotations

from functools import partial

import torch

from trunnion.contract import CacheTensorSpec, LayerCaches
from trunnion.interfaces.attention import GroupSpec, MLASpec, StepInputs
from trunnion.reference.mla import ReferenceMLAGroup
from trunnion_ascend.cache_writes import write_cache
from trunnion_ascend.capabilities import MAX_LATENT_ROWS
from trunnion_ascend.checks import check_latent_caches, check_latent_rows
from trunnion_ascend.fused import FusedAttention, Keys, Shape
from trunnion_ascend.task_updates import CallsAtOnce, Tasks


class FusedMLAGroup(ReferenceMLAGroup):
    """Caches per layer: `latent_cache` [num_blocks, block_size, kv_lora_rank] and `rope_cache` of `rope_head_dim`."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self.tasks: Tasks = CallsAtOnce()
        shape = Shape(
            num_query_heads=self.spec.num_qo_heads, num_kv_heads=1, scale=self.spec.scale, max_rows=MAX_LATENT_ROWS
        )
        self._fused = FusedAttention(shape, device)
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._keys: list[Keys] = []

    @classmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        assert isinstance(spec, MLASpec), f"latent attention cannot run {spec}"
        widths = {"latent_cache": spec.kv_lora_rank, "rope_cache": spec.rope_head_dim}
        return tuple(
            CacheTensorSpec(name=name, shape=(block_size, width), dtype=spec.dtype) for name, width in widths.items()
        )

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def bind_kv_cache(self, cache_index: int, caches: LayerCaches) -> None:
        """As `Group.bind_kv_cache`.

        Raises:
            ValueError: a cache does not have the features of the group, or blocks of a size that the operator takes.
        """
        check_latent_caches(self.spec, caches)
        super().bind_kv_cache(cache_index, caches)
        self._keys = [
            Keys(key=layer["latent_cache"], value=layer["latent_cache"], rope=layer["rope_cache"]) for layer in caches
        ]

    def plan(self, step: StepInputs) -> None:
        """Find the runs of the step; errors are those of `FusedAttention.plan`."""
        slots = self.tensors(step.device).slot_mapping
        assert slots is not None, "attention groups have slots"
        self._slots = slots
        self._fused.plan(step, self.cache_index)

    def run(
        self,
        layer: int,
        q_latent: torch.Tensor,
        q_rope: torch.Tensor,
        kv_latent: torch.Tensor,
        k_rope: torch.Tensor,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `MLAGroup.run`; ValueError for heads, features or dtypes that are not the group's."""
        out = torch.empty_like(q_latent, memory_format=torch.contiguous_format) if out is None else out
        check_latent_rows(self.spec, q_latent=q_latent, q_rope=q_rope, out=out)
        cache = self.caches[layer]
        latent, rope = (cache[name].unsqueeze(2) for name in ("latent_cache", "rope_cache"))
        write_cache(kv_latent.unsqueeze(1), k_rope.unsqueeze(1), latent, rope, self._slots)
        count = self._fused.num_rows
        if count < out.shape[0]:
            out[count:] = 0
        if count:
            given = q_latent.contiguous(), q_rope.contiguous()
            self._fused.prepare(self._keys[layer], *given)
            self.tasks.run(partial(self._attend, layer), *given, out)
        return out

    def _attend(self, layer: int, q_latent: torch.Tensor, q_rope: torch.Tensor, out: torch.Tensor) -> None:
        self._fused.attend(self._keys[layer], q_latent, out, query_rope=q_rope)
