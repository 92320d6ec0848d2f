"""Latent attention on this package's own Triton kernel: what FlashInfer refuses.

As in `triton_attention.py` the kernel reads lengths, tables and slots on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from trunnion.interfaces.attention import GroupSpec, MLASpec, StepInputs
from trunnion.reference.mla import ReferenceMLAGroup
from trunnion.runner.buckets import Buckets
from trunnion_cuda.kernels.cache_write import write_cache
from trunnion_cuda.kernels.latent_attention import latent_attention, num_tiles, why_not
from trunnion_cuda.kernels.paged_attention import num_splits
from trunnion_cuda.paged_parts import Part, example_decodes, example_prompt, parts_of
from trunnion_cuda.workspaces import float_workspace


def why_not_triton_mla(spec: MLASpec) -> str | None:
    """Why the kernel cannot run layers of this shape, or None if it can."""
    return why_not(spec.kv_lora_rank, spec.rope_head_dim)


class TritonMLAGroup(ReferenceMLAGroup):
    """Caches as the reference has them; scores and softmax in float32. Long keys of few decodes are split."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._parts: list[Part] = []
        self._num_rows = 0
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._num_processors = torch.cuda.get_device_properties(device).multi_processor_count

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def plan(self, step: StepInputs) -> None:
        """Uniform decodes go through the kernel together, and so does the rest; a full graph has decodes only."""
        group = self.tensors(step.device)
        assert group.slot_mapping is not None
        self._slots = group.slot_mapping
        self._num_rows = group.slot_mapping.shape[0] if step.in_full_graph else step.counts.num_tokens
        self._parts = parts_of(step, group, self._cache(0).shape[1], self._splits)

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
        """See `MLAGroup.run`."""
        latent, rope = self._cache(layer).split((self.spec.kv_lora_rank, self.spec.rope_head_dim), dim=-1)
        write_cache(kv_latent, k_rope, latent, rope, self._slots)
        out = torch.empty_like(q_latent, memory_format=torch.contiguous_format) if out is None else out
        out[self._num_rows :] = 0
        for part in self._parts:
            self._attend(layer, part, q_latent, q_rope, out)
        return out

    def examples(self, buckets: Buckets) -> Iterator[Callable[[], object]]:
        """See `TunedGroup.examples`: decodes of each full graph on long keys, and prompts of each size."""
        cache = self._cache(0)
        for bucket, query_len in buckets.all_full():
            shape = bucket.num_reqs, query_len
            yield lambda shape=shape: self._example(example_decodes(buckets.limits, cache, *shape, self._splits))
        for num_tokens in reversed(buckets.tokens):
            yield lambda size=num_tokens: self._example(example_prompt(buckets.limits, cache, size))

    def _example(self, part: Part) -> None:
        spec, rows = self.spec, part.rows.stop
        q_latent, q_rope = (
            # Heads first, as the layer's einsum leaves them.
            torch.zeros(spec.num_qo_heads, rows, size, dtype=spec.dtype, device=self.device).transpose(0, 1)
            for size in (spec.kv_lora_rank, spec.rope_head_dim)
        )
        self._attend(0, part, q_latent, q_rope, q_latent.new_empty(q_latent.shape))

    def _attend(self, layer: int, part: Part, q_latent: torch.Tensor, q_rope: torch.Tensor, out: torch.Tensor) -> None:
        latent_attention(
            q_latent[part.rows],
            q_rope[part.rows],
            self._cache(layer),
            part.keys,
            scale=self.spec.scale,
            splits=part.splits,
            out=out[part.rows],
            clears=False,
            workspace=float_workspace(self.device),
        )

    def _splits(self, count: int, query_len: int, longest: int) -> int:
        return num_splits(longest, count * num_tiles(query_len * self.spec.num_qo_heads), self._num_processors)

    def _cache(self, layer: int) -> torch.Tensor:
        return self.caches[layer]["kv_cache"]
