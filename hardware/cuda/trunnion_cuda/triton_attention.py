"""Paged attention on this package's own Triton kernels: what FlashInfer refuses.

Nothing is planned but which requests go through the kernel together: it reads lengths, tables and slots on the device,
so that a captured call follows them, and upper bounds of lengths will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from trunnion.interfaces.attention import AttentionSpec, GroupSpec, Rotation, StepInputs
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion.runner.buckets import Buckets
from trunnion_cuda.cache_writes import RotatingWrite
from trunnion_cuda.kernels.launch import FLOAT8_CAPABILITY
from trunnion_cuda.kernels.paged_attention import num_splits, paged_attention, why_not
from trunnion_cuda.paged_parts import Part, example_decodes, example_prompt, parts_of
from trunnion_cuda.workspaces import float_workspace


def why_not_triton(spec: AttentionSpec) -> str | None:
    """Why the kernel cannot run layers of this shape, or None if it can."""
    if spec.cache_dtype not in (None, torch.float8_e4m3fn):
        return f"the kernel's caches of another dtype are float8_e4m3fn, not {spec.cache_dtype}"
    if spec.cache_dtype is not None and torch.cuda.get_device_capability() < FLOAT8_CAPABILITY:
        return "the kernel converts float8_e4m3fn from compute capability 8.9 on"
    return why_not(spec.num_qo_heads, spec.num_kv_heads, spec.head_dim)


class TritonAttentionGroup(ReferenceAttentionGroup):
    """Caches as the reference has them; scores and softmax in float32. Long keys of few decodes are split."""

    rotates = True

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._parts: list[Part] = []
        self._num_rows = 0
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._write = RotatingWrite(self.spec.stored_dtype)
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
        self._parts = parts_of(step, group, self.caches[0]["k_cache"].shape[1], self._splits)

    def run(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        sinks: torch.Tensor | None = None,
        rotation: Rotation | None = None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `AttentionGroup.run`."""
        q, _ = self._write(q, k, v, rotation, self.caches[layer], self._slots, self.kv_scales[layer])
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        out[self._num_rows :] = 0
        for part in self._parts:
            self._attend(layer, part, q, out, sinks)
        return out

    def examples(self, buckets: Buckets) -> Iterator[Callable[[], object]]:
        """See `TunedGroup.examples`: decodes of each full graph on long keys, and prompts of each size."""
        cache = self.caches[0]["k_cache"]
        for bucket, query_len in buckets.all_full():
            shape = bucket.num_reqs, query_len
            yield lambda shape=shape: self._example(example_decodes(buckets.limits, cache, *shape, self._splits))
        for num_tokens in reversed(buckets.tokens):
            yield lambda size=num_tokens: self._example(example_prompt(buckets.limits, cache, size))

    def _example(self, part: Part) -> None:
        spec = self.spec
        q = torch.zeros(part.rows.stop, spec.num_qo_heads, spec.head_dim, dtype=spec.dtype, device=self.device)
        sinks = torch.zeros(spec.num_qo_heads, device=self.device) if spec.has_sinks else None
        self._attend(0, part, q, torch.empty_like(q), sinks)

    def _attend(self, layer: int, part: Part, q: torch.Tensor, out: torch.Tensor, sinks: torch.Tensor | None) -> None:
        k_scale, v_scale = self.kv_scales[layer]
        paged_attention(
            q[part.rows],
            self.caches[layer]["k_cache"],
            self.caches[layer]["v_cache"],
            part.keys,
            scale=self.spec.scale,
            window=self.spec.window,
            soft_cap=self.spec.soft_cap,
            sinks=sinks,
            k_scale=k_scale,
            v_scale=v_scale,
            splits=part.splits,
            out=out[part.rows],
            clears=False,
            workspace=float_workspace(self.device),
        )

    def _splits(self, count: int, query_len: int, longest: int) -> int:
        if self.spec.window is not None:
            return 1
        return num_splits(longest, count * self.spec.num_kv_heads, self._num_processors)
