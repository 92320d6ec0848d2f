"""Paged attention on FlashInfer's wrappers: planned once per step from the host's copies, graph mode for full graphs.

Rows that have no slot (placeholders of short drafts, padding of a graph) are queries of a request without keys: what
lies in the cache at their positions is in nobody's range of keys. Wrappers are those of flashinfer 0.7.4.
"""

from __future__ import annotations

from dataclasses import dataclass

import flashinfer
import numpy as np
import torch

from trunnion.contract import Field, LayerCaches
from trunnion.interfaces.attention import GroupSpec, StepInputs
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion.reference.captured import write_rows
from trunnion_cuda.segments import Segments, segments_of
from trunnion_cuda.workspaces import PlanMemory, float_workspace

TENSOR_CORE_GROUP = 4
"""Query heads per KV head from which a decode is faster on tensor cores, though they compute rows nobody asked for."""
BACKEND = "fa2"
"""The one that has all of it: graphs, windows, soft caps, every architecture from sm_80."""
LAYOUT = "NHD"

Wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper | flashinfer.BatchPrefillWithPagedKVCacheWrapper


@dataclass(slots=True)
class _Part:
    """A planned wrapper and the rows of the step that it serves."""

    wrapper: Wrapper
    rows: slice


@dataclass(slots=True)
class _GraphPlan:
    """A graph-mode wrapper for one bucket: its plan must stay what it was when the bucket was captured."""

    wrapper: Wrapper
    info: list[int] | None = None


class FlashInferAttentionGroup(ReferenceAttentionGroup):
    """Caches as the reference has them, which is FlashInfer's NHD layout; scores and softmax in float32."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._memory = {name: PlanMemory(device) for name in ("decode", "prefill")}
        self._decode = self._decode_wrapper()
        self._prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            float_workspace_buffer=float_workspace(device), kv_layout=LAYOUT, backend=BACKEND
        )
        self._graphs: dict[tuple[int, int], _GraphPlan] = {}
        self._parts: list[_Part] = []
        self._num_rows = 0
        self._slots = torch.empty(0, dtype=torch.int32, device=device)

    @classmethod
    def required_fields(cls, spec: GroupSpec) -> Field:
        return Field.KV_CSR

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def bind_kv_cache(self, cache_index: int, caches: LayerCaches) -> None:
        """As `Group.bind_kv_cache`.

        Raises:
            ValueError: a cache does not have the heads of the group; FlashInfer would read past its rows.
        """
        expected = (self.spec.num_kv_heads, self.spec.head_dim)
        for index, layer in enumerate(caches):
            for name, cache in layer.items():
                if tuple(cache.shape[2:]) != expected or not cache.is_contiguous():
                    raise ValueError(
                        f"layer {index}: {name} has shape {tuple(cache.shape)} and strides {cache.stride()}, expected "
                        f"[num_blocks, block_size, {expected[0]}, {expected[1]}], contiguous"
                    )
        super().bind_kv_cache(cache_index, caches)

    def plan(self, step: StepInputs) -> None:
        """Plan the step: one wrapper for a full graph, otherwise one for single-token decodes and one for the rest."""
        slots = self.tensors(step.device).slot_mapping
        assert slots is not None
        self._slots = slots
        for memory in self._memory.values():
            memory.next_step()
        if step.in_full_graph:
            self._parts = [self._plan_graph(step)]
            self._num_rows = slots.shape[0]
            return
        counts = step.counts
        assert counts.lens_are_exact, "FlashInfer's plan needs exact host lengths"
        first = counts.num_decodes if counts.decode_query_len == 1 else 0
        self._parts = []
        if first:
            self._parts.append(self._plan_decodes(step, first))
        if counts.num_reqs > first:
            self._parts.append(self._plan_rest(step, first))
        self._num_rows = counts.num_tokens

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
        """See `AttentionGroup.run`; ValueError for heads that are not the group's, which FlashInfer would accept."""
        spec = self.spec
        if q.shape[1:] != (spec.num_qo_heads, spec.head_dim) or k.shape[1:] != (spec.num_kv_heads, spec.head_dim):
            raise ValueError(f"q {tuple(q.shape)} and k {tuple(k.shape)} do not have the heads of {spec}")
        k_cache, v_cache = self.caches[layer]["k_cache"], self.caches[layer]["v_cache"]
        write_rows(k_cache.flatten(0, 1), self._slots, k[: self._slots.shape[0]])
        write_rows(v_cache.flatten(0, 1), self._slots, v[: self._slots.shape[0]])
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        if self._num_rows < q.shape[0]:
            out[self._num_rows :] = 0
        for part in self._parts:
            part.wrapper.run(q[part.rows], (k_cache, v_cache), out=out[part.rows])
        return out

    # Steps outside of full graphs.

    def _plan_decodes(self, step: StepInputs, count: int) -> _Part:
        host, device = self.tensors(step.host), self.tensors(step.device)
        assert host.kv_indptr is not None and host.kv_last_page_len is not None and device.kv_indices is not None
        self._memory["decode"].lend_to(self._decode)
        self._decode.plan(
            indptr=host.kv_indptr[: count + 1],
            indices=device.kv_indices,
            last_page_len=host.kv_last_page_len[:count],
            **self._shape("head_dim"),
        )
        return _Part(self._decode, slice(0, count))

    def _plan_rest(self, step: StepInputs, first: int) -> _Part:
        found = segments_of(step, self.cache_index, first=first, block_size=self._block_size)
        device = self.tensors(step.device)
        assert device.kv_indices is not None
        self._memory["prefill"].lend_to(self._prefill)
        begin = int(step.host.query_start_loc[first])
        self._prefill.plan(
            qo_indptr=_tensor(found.qo_indptr),
            paged_kv_indptr=_tensor(found.kv_indptr),
            # As the host has built them, but where placeholders took blocks that they cannot see.
            paged_kv_indices=device.kv_indices if found.kv_indices is None else _tensor(found.kv_indices),
            paged_kv_last_page_len=_tensor(found.last_page_len),
            causal=True,
            **self._shape("head_dim_qk"),
        )
        return _Part(self._prefill, slice(begin, step.counts.num_tokens))

    # Full graphs.

    def _plan_graph(self, step: StepInputs) -> _Part:
        """Plan the bucket's wrapper, in its persistent buffers.

        Raises:
            RuntimeError: the plan asks for other launches than those that were captured.
        """
        num_reqs = step.device.seq_lens.shape[0]
        num_tokens = self._slots.shape[0]
        query_len = num_tokens // num_reqs
        found = segments_of(
            step, self.cache_index, block_size=self._block_size, padded_reqs=num_reqs, query_len=query_len
        )
        key = (num_reqs, query_len)
        if key not in self._graphs:
            self._graphs[key] = _GraphPlan(self._graph_wrapper(step, found, query_len))
        graph = self._graphs[key]
        self._memory["decode"].lend_to(graph.wrapper)
        host = self._memory["decode"].host_copies(found, key)
        if query_len == 1:
            # The buffer of indices is the executor's own input, which holds the step's already.
            graph.wrapper.plan(
                indptr=host["kv_indptr"],
                indices=self.tensors(step.device).kv_indices[:0],
                last_page_len=host["last_page_len"],
                **self._shape("head_dim"),
            )
        else:
            graph.wrapper.plan(
                qo_indptr=host["qo_indptr"],
                paged_kv_indptr=host["kv_indptr"],
                paged_kv_indices=host["kv_indices"],
                paged_kv_last_page_len=host["last_page_len"],
                causal=True,
                **self._shape("head_dim_qk"),
            )
        info = list(graph.wrapper._plan_info)
        if graph.info not in (None, info):
            raise RuntimeError(f"the plan of {num_reqs} requests of {query_len} tokens changed: {graph.info} -> {info}")
        graph.info = info
        return _Part(graph.wrapper, slice(0, num_tokens))

    def _graph_wrapper(self, step: StepInputs, found: Segments, query_len: int) -> Wrapper:
        indices = self.tensors(step.device).kv_indices
        assert indices is not None
        count = len(found.last_page_len)
        indptr, last = (torch.zeros(size, dtype=torch.int32, device=self.device) for size in (count + 1, count))
        if query_len == 1:
            return self._decode_wrapper(
                use_cuda_graph=True,
                paged_kv_indptr_buffer=indptr,
                paged_kv_indices_buffer=indices,
                paged_kv_last_page_len_buffer=last,
            )
        return flashinfer.BatchPrefillWithPagedKVCacheWrapper(
            float_workspace_buffer=float_workspace(self.device),
            kv_layout=LAYOUT,
            backend=BACKEND,
            use_cuda_graph=True,
            qo_indptr_buf=torch.zeros_like(indptr),
            paged_kv_indptr_buf=indptr,
            paged_kv_indices_buf=torch.zeros_like(indices),
            paged_kv_last_page_len_buf=last,
        )

    def _decode_wrapper(self, **buffers: object) -> flashinfer.BatchDecodeWithPagedKVCacheWrapper:
        return flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            float_workspace_buffer=float_workspace(self.device),
            kv_layout=LAYOUT,
            backend=BACKEND,
            use_tensor_cores=self.spec.num_qo_heads // self.spec.num_kv_heads >= TENSOR_CORE_GROUP,
            **buffers,
        )

    # What every plan is told.

    @property
    def _block_size(self) -> int:
        return self.caches[0]["k_cache"].shape[1]

    def _shape(self, head_dim: str) -> dict[str, object]:
        """Arguments that do not change from step to step; wrappers differ in what they call the head's size."""
        spec = self.spec
        return {
            "num_qo_heads": spec.num_qo_heads,
            "num_kv_heads": spec.num_kv_heads,
            head_dim: spec.head_dim,
            "page_size": self._block_size,
            "pos_encoding_mode": "NONE",
            # FlashInfer does not count the query itself.
            "window_left": -1 if spec.window is None else spec.window - 1,
            "logits_soft_cap": spec.soft_cap or 0.0,
            "sm_scale": spec.scale,
            "q_data_type": spec.dtype,
            "kv_data_type": spec.dtype,
        }


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values)
