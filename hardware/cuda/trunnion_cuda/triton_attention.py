"""Paged attention on this package's own Triton kernels: what FlashInfer refuses.

Nothing is planned but which requests go through the kernel together: it reads lengths, tables and slots on the device,
so that a captured call follows them, and upper bounds of lengths will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from trunnion.contract import Limits
from trunnion.interfaces.attention import AttentionSpec, GroupSpec, Rotation, StepInputs
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion.runner.buckets import Buckets
from trunnion_cuda.cache_writes import RotatingWrite
from trunnion_cuda.kernels.launch import FLOAT8_CAPABILITY
from trunnion_cuda.kernels.paged_attention import PagedKeys, num_splits, paged_attention, why_not
from trunnion_cuda.workspaces import float_workspace

EXAMPLE_KEYS = 2048
"""Of a decode that kernels are timed with."""


def why_not_triton(spec: AttentionSpec) -> str | None:
    """Why the kernel cannot run layers of this shape, or None if it can."""
    if spec.cache_dtype not in (None, torch.float8_e4m3fn):
        return f"the kernel's caches of another dtype are float8_e4m3fn, not {spec.cache_dtype}"
    if spec.cache_dtype is not None and torch.cuda.get_device_capability() < FLOAT8_CAPABILITY:
        return "the kernel converts float8_e4m3fn from compute capability 8.9 on"
    return why_not(spec.num_qo_heads, spec.num_kv_heads, spec.head_dim)


@dataclass(frozen=True, slots=True)
class _Part:
    """Requests that one call of the kernel serves."""

    keys: PagedKeys
    rows: slice
    splits: int


class TritonAttentionGroup(ReferenceAttentionGroup):
    """Caches as the reference has them; scores and softmax in float32. Long keys of few decodes are split."""

    rotates = True

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._parts: list[_Part] = []
        self._num_rows = 0
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._write = RotatingWrite(self.spec.stored_dtype)
        self._num_processors = torch.cuda.get_device_properties(device).multi_processor_count

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def plan(self, step: StepInputs) -> None:
        """Uniform decodes go through the kernel together, and so does the rest; a full graph has decodes only."""
        slots, block_table = self.tensors(step.device).slot_mapping, self.tensors(step.device).block_table
        assert slots is not None and block_table is not None
        self._slots = slots
        if step.in_full_graph:
            count = step.device.seq_lens.shape[0]
            self._num_rows = slots.shape[0]
            longest = block_table.shape[1] * self.caches[0]["k_cache"].shape[1]
            self._parts = [self._decodes(step, count, self._num_rows // count, longest)]
            return
        counts = step.counts
        self._num_rows, self._parts = counts.num_tokens, []
        if counts.num_decodes:
            self._parts.append(self._decodes(step, counts.num_decodes, counts.decode_query_len, counts.max_seq_len))
        if counts.num_reqs > counts.num_decodes:
            keys = self._keys(step, slice(counts.num_decodes, counts.num_reqs), counts.max_query_len, is_uniform=False)
            self._parts.append(_Part(keys, slice(0, self._num_rows), splits=1))

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
        for bucket, query_len in buckets.all_full():
            yield lambda count=bucket.num_reqs, query_len=query_len: self._example(buckets.limits, count, query_len)
        for num_tokens in reversed(buckets.tokens):
            length = min(num_tokens, buckets.limits.max_model_len)
            yield lambda query_len=length: self._example(buckets.limits, 1, query_len, is_prompt=True)

    def _example(self, limits: Limits, count: int, query_len: int, *, is_prompt: bool = False) -> None:
        """Attend from zeros to whatever lies in the cache; decodes to `EXAMPLE_KEYS` keys, as far as the limits go."""
        spec, cache = self.spec, self.caches[0]["k_cache"]
        num_keys = query_len if is_prompt else min(max(EXAMPLE_KEYS, query_len), limits.max_model_len)
        width = -(-limits.max_model_len // cache.shape[1])
        q = torch.zeros(count * query_len, spec.num_qo_heads, spec.head_dim, dtype=spec.dtype, device=self.device)
        integers = {"dtype": torch.int32, "device": self.device}
        keys = PagedKeys(
            block_table=(torch.arange(count * width, **integers) % cache.shape[0]).view(count, width),
            seq_lens=torch.full((count,), num_keys, **integers),
            query_start_loc=torch.tensor([0, query_len], **integers) if is_prompt else None,
            max_query_len=query_len,
            kv_start=torch.zeros(count, **integers),
            slot_mapping=torch.zeros(count * query_len, **integers),
        )
        splits = 1 if is_prompt else self._splits(count, width * cache.shape[1])
        sinks = torch.zeros(spec.num_qo_heads, device=self.device) if spec.has_sinks else None
        self._attend(0, _Part(keys, slice(0, len(q)), splits), q, torch.empty_like(q), sinks)

    def _attend(self, layer: int, part: _Part, q: torch.Tensor, out: torch.Tensor, sinks: torch.Tensor | None) -> None:
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

    def _decodes(self, step: StepInputs, count: int, query_len: int, longest: int) -> _Part:
        keys = self._keys(step, slice(0, count), query_len, is_uniform=True)
        return _Part(keys, slice(0, count * query_len), self._splits(count, longest))

    def _splits(self, count: int, longest: int) -> int:
        if self.spec.window is not None:
            return 1
        return num_splits(longest, count * self.spec.num_kv_heads, self._num_processors)

    def _keys(self, step: StepInputs, requests: slice, max_query_len: int, *, is_uniform: bool) -> PagedKeys:
        device = self.tensors(step.device)
        assert device.block_table is not None and device.kv_start is not None
        bounds = slice(requests.start, requests.stop + 1)
        return PagedKeys(
            block_table=device.block_table[requests],
            seq_lens=step.device.seq_lens[requests],
            query_start_loc=None if is_uniform else step.device.query_start_loc[bounds],
            max_query_len=max_query_len,
            kv_start=device.kv_start[requests],
            slot_mapping=self._slots,
        )
