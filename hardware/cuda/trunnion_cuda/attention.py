"""Paged attention on FlashInfer's wrappers: planned once per step from the host's copies, graph mode for full graphs.

Rows that have no slot (placeholders of short drafts, padding of a graph) are queries of a request without keys: what
lies in the cache at their positions is in nobody's range of keys.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch

from trunnion.contract import Field, LayerCaches
from trunnion.interfaces.attention import AttentionSpec, GroupSpec, Rotation, StepInputs
from trunnion.reference.attention import ReferenceAttentionGroup
from trunnion.reference.checks import check_caches, check_rows
from trunnion_cuda.cache_writes import RotatingWrite
from trunnion_cuda.capabilities import why_no_prefix_levels
from trunnion_cuda.cascade import CascadeWrapper
from trunnion_cuda.checks import check_indices
from trunnion_cuda.levels import levels_of
from trunnion_cuda.segments import Segments, has_no_context, segments_of
from trunnion_cuda.workspaces import PlanMemory
from trunnion_cuda.wrappers import (
    DecodeWrapper,
    PrefillWrapper,
    RaggedWrapper,
    decode_wrapper,
    prefill_wrapper,
    ragged_wrapper,
    shape,
)


@dataclass(slots=True)
class _Part:
    """A planned wrapper and the rows of the step that it serves."""

    wrapper: DecodeWrapper | PrefillWrapper | RaggedWrapper | CascadeWrapper
    rows: slice
    is_ragged: bool = False
    """Keys and values are those of the rows, and are not read from the cache."""


@dataclass(slots=True)
class _GraphPlan:
    """A graph-mode wrapper for one bucket: its plan must stay what it was when the bucket was captured."""

    wrapper: DecodeWrapper | PrefillWrapper
    info: list[int] | None = None


class FlashInferAttentionGroup(ReferenceAttentionGroup):
    """Caches as the reference has them, which is FlashInfer's NHD layout; scores and softmax in float32.

    `prefills` counts what ran the requests beyond single-token decodes: "ragged" without cached tokens, or "paged".
    """

    rotates = True

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._memory = {name: PlanMemory(device) for name in ("decode", "prefill")}
        self._decode = decode_wrapper(self.spec, device)
        self._prefill = prefill_wrapper(self.spec, device)
        self._ragged = ragged_wrapper(self.spec, device)
        # Each comes with memory to plan in, which goes back here, whether it is ever planned or not.
        self._memory["decode"].lend_to(self._decode)
        for wrapper in filter(None, (self._prefill, self._ragged)):
            self._memory["prefill"].lend_to(wrapper)
        self._cascade: CascadeWrapper | None = None
        if self.accepts_prefix_levels(self.spec):
            self._cascade = CascadeWrapper(self.spec, device, own=self._prefill)
            self._memory["decode"].lend_to(self._cascade.shared)
        self.prefills: Counter[str] = Counter()
        self._graphs: dict[tuple[int, int], _GraphPlan] = {}
        self._parts: list[_Part] = []
        self._num_rows = 0
        self._slots = torch.empty(0, dtype=torch.int32, device=device)
        self._write = RotatingWrite(self.spec.stored_dtype)

    @classmethod
    def required_fields(cls, spec: GroupSpec) -> Field:
        return Field.KV_CSR

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    @classmethod
    def accepts_prefix_levels(cls, spec: GroupSpec) -> bool:
        assert isinstance(spec, AttentionSpec), f"paged attention cannot run {spec}"
        return why_no_prefix_levels(spec) is None

    def bind_kv_cache(self, cache_index: int, caches: LayerCaches) -> None:
        """As `Group.bind_kv_cache`.

        Raises:
            ValueError: a cache does not have the heads of the group; FlashInfer would read past its rows.
        """
        check_caches(self.spec, caches)
        super().bind_kv_cache(cache_index, caches)

    def plan(self, step: StepInputs) -> None:
        """Plan the step: one wrapper for a full graph, or two levels where requests share pages; otherwise one wrapper
        for single-token decodes and one for the rest."""
        slots = self.tensors(step.device).slot_mapping
        assert slots is not None
        check_indices(slot_mapping=slots, kv_indices=self.tensors(step.device).kv_indices)
        self._slots = slots
        for memory in self._memory.values():
            memory.next_step()
        if step.in_full_graph:
            self._parts = [self._plan_graph(step)]
            self._num_rows = slots.shape[0]
            return
        counts = step.counts
        assert counts.lens_are_exact, "FlashInfer's plan needs exact host lengths"
        self._num_rows = counts.num_tokens
        if (levels := self._plan_levels(step)) is not None:
            self._parts = [levels]
            return
        first = counts.num_decodes if counts.decode_query_len == 1 else 0
        self._parts = []
        if first:
            self._parts.append(self._plan_decodes(step, first))
        if counts.num_reqs > first:
            self._parts.append(self._plan_rest(step, first))

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
        """See `AttentionGroup.run`; ValueError for arguments that are not the group's, which FlashInfer would take."""
        check_rows(self.spec, q, k, v, sinks, out)
        k_cache, v_cache = self.caches[layer]["k_cache"], self.caches[layer]["v_cache"]
        k_scale, v_scale = self.kv_scales[layer]
        q, k = self._write(q, k, v, rotation, self.caches[layer], self._slots, (k_scale, v_scale))
        out = torch.empty_like(q, memory_format=torch.contiguous_format) if out is None else out
        if self._num_rows < q.shape[0]:
            out[self._num_rows :] = 0
        # Kernels with sinks take what they add to the others' arguments by position.
        more = () if sinks is None else (sinks, self.spec.scale)
        scales = {} if self.spec.cache_dtype is None else {"k_scale": k_scale, "v_scale": v_scale}
        for part in self._parts:
            rows = part.rows
            if part.is_ragged:
                part.wrapper.run(q[rows], k[rows], v[rows], out=out[rows])
            else:
                part.wrapper.run(q[rows], (k_cache, v_cache), *more, **scales, out=out[rows])
        return out

    # Steps outside of full graphs.

    def _plan_levels(self, step: StepInputs) -> _Part | None:
        """All requests in two levels, if some of them share pages."""
        if self._cascade is None:
            return None
        levels = levels_of(step, self.cache_index, block_size=self._block_size)
        if levels is None:
            return None
        # No decodes are planned beside them: their memory is free.
        self._cascade.plan(
            levels, self._block_size, shared_memory=self._memory["decode"], own_memory=self._memory["prefill"]
        )
        return _Part(self._cascade, slice(0, step.counts.num_tokens))

    def _plan_decodes(self, step: StepInputs, count: int) -> _Part:
        host, device = self.tensors(step.host), self.tensors(step.device)
        assert host.kv_indptr is not None and host.kv_last_page_len is not None and device.kv_indices is not None
        self._memory["decode"].lend_to(self._decode)
        self._decode.plan(
            indptr=host.kv_indptr[: count + 1],
            indices=device.kv_indices,
            last_page_len=host.kv_last_page_len[:count],
            page_size=self._block_size,
            **shape(self.spec, "head_dim"),
        )
        return _Part(self._decode, slice(0, count))

    def _plan_rest(self, step: StepInputs, first: int) -> _Part:
        found = segments_of(step, self.cache_index, first=first, block_size=self._block_size)
        device = self.tensors(step.device)
        assert device.kv_indices is not None
        begin = int(step.host.query_start_loc[first])
        rows = slice(begin, step.counts.num_tokens)
        if self._ragged is not None and has_no_context(step, found, first):
            return self._plan_ragged(self._ragged, found, rows)
        self.prefills["paged"] += 1
        self._memory["prefill"].lend_to(self._prefill)
        self._prefill.plan(
            qo_indptr=_tensor(found.qo_indptr),
            paged_kv_indptr=_tensor(found.kv_indptr),
            # As the host has built them, but where placeholders took blocks that they cannot see.
            paged_kv_indices=device.kv_indices if found.kv_indices is None else _tensor(found.kv_indices),
            paged_kv_last_page_len=_tensor(found.last_page_len),
            causal=True,
            page_size=self._block_size,
            **shape(self.spec, "head_dim_qk"),
        )
        return _Part(self._prefill, rows)

    def _plan_ragged(self, wrapper: RaggedWrapper, found: Segments, rows: slice) -> _Part:
        """Every key of these requests is a row of the step."""
        self.prefills["ragged"] += 1
        self._memory["prefill"].lend_to(wrapper)
        bounds = _tensor(found.qo_indptr)
        wrapper.plan(qo_indptr=bounds, kv_indptr=bounds, causal=True, **shape(self.spec, "head_dim_qk"))
        return _Part(wrapper, rows, is_ragged=True)

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
                page_size=self._block_size,
                **shape(self.spec, "head_dim"),
            )
        else:
            graph.wrapper.plan(
                qo_indptr=host["qo_indptr"],
                paged_kv_indptr=host["kv_indptr"],
                paged_kv_indices=host["kv_indices"],
                paged_kv_last_page_len=host["last_page_len"],
                causal=True,
                page_size=self._block_size,
                **shape(self.spec, "head_dim_qk"),
            )
        info = list(graph.wrapper._plan_info)
        if graph.info not in (None, info):
            raise RuntimeError(f"the plan of {num_reqs} requests of {query_len} tokens changed: {graph.info} -> {info}")
        graph.info = info
        return _Part(graph.wrapper, slice(0, num_tokens))

    def _graph_wrapper(self, step: StepInputs, found: Segments, query_len: int) -> DecodeWrapper | PrefillWrapper:
        indices = self.tensors(step.device).kv_indices
        assert indices is not None
        count = len(found.last_page_len)
        indptr, last = (torch.zeros(size, dtype=torch.int32, device=self.device) for size in (count + 1, count))
        if query_len == 1:
            return decode_wrapper(
                self.spec,
                self.device,
                use_cuda_graph=True,
                paged_kv_indptr_buffer=indptr,
                paged_kv_indices_buffer=indices,
                paged_kv_last_page_len_buffer=last,
            )
        return prefill_wrapper(
            self.spec,
            self.device,
            use_cuda_graph=True,
            qo_indptr_buf=torch.zeros_like(indptr),
            paged_kv_indptr_buf=indptr,
            paged_kv_indices_buf=torch.zeros_like(indices),
            paged_kv_last_page_len_buf=last,
        )

    @property
    def _block_size(self) -> int:
        return self.caches[0]["k_cache"].shape[1]


def _tensor(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values)
