"""Latent attention on FlashInfer's kernel: planned once per step from the host's copies, in buffers that stay.

The kernel's own `plan` and `run` are called, those under FlashInfer's wrapper: each plan of the wrapper takes 8 MiB of
the device, copies what it had and reads page numbers back, none of which a step may do. What the wrapper checks is
checked here and in `capabilities.py`. Of flashinfer 0.7.4.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from flashinfer.jit import gen_batch_mla_module

from trunnion.contract import Field
from trunnion.interfaces.attention import GroupSpec, MLASpec, StepInputs
from trunnion.reference.mla import ReferenceMLAGroup
from trunnion_cuda.cache_writes import cache_write
from trunnion_cuda.capabilities import BACKEND
from trunnion_cuda.levels import levels_of
from trunnion_cuda.merge import merge_function
from trunnion_cuda.segments import Segments, segments_of
from trunnion_cuda.workspaces import PlanMemory, float_workspace

NOT_CAUSAL, CAUSAL = 0, 1
MAX_WORK_ITEMS = 16384
"""Room of the kernel's schedule, which `plan` would write past."""
_Parts = tuple[torch.Tensor, torch.Tensor]
"""Of queries, or of cached keys: latent and rotated."""
ALIGNMENT = 16
"""Bytes: the kernel loads and stores vectors of this size."""


@functools.cache
def latent_module(spec: MLASpec) -> Any:
    """The compiled kernel of a shape; minutes when it is compiled first."""
    dtype = spec.dtype
    return gen_batch_mla_module(
        BACKEND, dtype, dtype, dtype, torch.int32, spec.kv_lora_rank, spec.rope_head_dim, False
    ).build_and_load()


@dataclass(frozen=True, slots=True)
class _Planned:
    """One call of the kernel in each layer."""

    info: list[int]
    """Where the kernel's schedule lies in `memory`."""
    memory: torch.Tensor
    indices: torch.Tensor
    rows: slice
    mask: int = CAUSAL


class FlashInferMLAGroup(ReferenceMLAGroup):
    """Caches as the reference has them: the kernel takes both parts of a row by their strides."""

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        self._memory, self._shared_memory = PlanMemory(device), PlanMemory(device)
        self._own_indices = torch.empty(0, dtype=torch.int32, device=device)
        self._graphs: dict[tuple[int, int], list[int]] = {}
        self._own: _Planned | None = None
        """Of all requests; None without any."""
        self._shared: _Planned | None = None
        """Of the pages that requests share, in a step with levels."""
        self._merge = merge_function(self.spec.num_qo_heads, self.spec.kv_lora_rank, self.spec.dtype, device)
        self._num_rows = 0
        self._slots = self._own_indices
        self._write = cache_write(self.spec.dtype)

    @classmethod
    def required_fields(cls, spec: GroupSpec) -> Field:
        return Field.KV_CSR

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    @classmethod
    def accepts_prefix_levels(cls, spec: GroupSpec) -> bool:
        return True

    def plan(self, step: StepInputs) -> None:
        """Plan the step's requests at once, decodes and others; in two levels where they share pages.

        Raises:
            ValueError: the step has more work than the kernel's schedule holds.
            RuntimeError: in a full graph, other launches than those that were captured.
        """
        device = self.tensors(step.device)
        assert device.slot_mapping is not None and device.kv_indices is not None
        self._slots = device.slot_mapping
        for memory in (self._memory, self._shared_memory):
            memory.next_step()
        self._own = self._shared = None
        if step.in_full_graph:
            self._own = self._plan_graph(step, device.kv_indices)
            return
        assert step.counts.lens_are_exact, "FlashInfer's plan needs exact host lengths"
        self._num_rows = step.counts.num_tokens
        if not step.counts.num_reqs:
            return
        rows = slice(0, self._num_rows)
        levels = levels_of(step, self.cache_index, block_size=self._block_size)
        if levels is None:
            found = segments_of(step, self.cache_index, block_size=self._block_size)
            self._own = self._planned(found, device.kv_indices, rows, self._memory)
            return
        self._own = self._planned(levels.own, device.kv_indices, rows, self._memory)
        self._shared = self._planned(levels.shared, device.kv_indices, levels.rows, self._shared_memory, NOT_CAUSAL)

    def _planned(
        self, found: Segments, indices: torch.Tensor, rows: slice, memory: PlanMemory, mask: int = CAUSAL
    ) -> _Planned:
        """The runs planned outside of full graphs; `indices` are the device's, for runs that have none of their own."""
        if found.kv_indices is not None:
            indices = torch.from_numpy(found.kv_indices).to(self.device)
        return _Planned(self._schedule(found, memory, mask), memory.parts[0], indices, rows, mask)

    def _plan_graph(self, step: StepInputs, indices: torch.Tensor) -> _Planned:
        num_reqs, self._num_rows = step.device.seq_lens.shape[0], self._slots.shape[0]
        key = (num_reqs, self._num_rows // num_reqs)
        found = segments_of(step, self.cache_index, block_size=self._block_size, padded_reqs=num_reqs, query_len=key[1])
        if found.kv_indices is not None:
            # Graphs of all buckets read the pages here, and one of them runs at a time.
            if self._own_indices.shape[0] < indices.shape[0]:
                assert key not in self._graphs, "the indices of a captured graph have moved"
                self._own_indices = torch.zeros_like(indices)
            indices = self._own_indices[: indices.shape[0]]
            host = self._memory.host_copies(found, key)["kv_indices"]
            indices[: len(host)].copy_(host, non_blocking=True)
        info = self._schedule(found, self._memory, CAUSAL)
        captured = self._graphs.setdefault(key, info)
        if captured != info:
            raise RuntimeError(f"the plan of {num_reqs} requests of {key[1]} tokens changed: {captured} -> {info}")
        return _Planned(info, self._memory.parts[0], indices, slice(0, self._num_rows))

    def _schedule(self, found: Segments, memory: PlanMemory, mask: int) -> list[int]:
        """Have the kernel's schedule written and uploaded -> where it lies."""
        kv_lens = found.num_keys(self._block_size)
        qo_indptr, kv_indptr, kv_lens = map(torch.from_numpy, (found.qo_indptr, found.kv_indptr, kv_lens))
        spec = self.spec
        rows = int(qo_indptr[-1]) * spec.num_qo_heads
        tile = 128 if rows // len(kv_lens) > 64 else 64
        assert tile % spec.num_qo_heads == 0, f"{spec.num_qo_heads} heads and {tile} rows: a query in two tiles"
        # Splitting the keys adds no more pieces than there are multiprocessors.
        most = rows // tile + len(kv_lens) + torch.cuda.get_device_properties(self.device).multi_processor_count
        if most > MAX_WORK_ITEMS:
            raise ValueError(
                f"{int(qo_indptr[-1])} tokens of {spec.num_qo_heads} heads are up to {most} pieces of work, and "
                f"FlashInfer's latent attention holds {MAX_WORK_ITEMS}: lower max_num_tokens"
            )
        int_workspace, host_workspace = memory.parts
        # By position: a compiled function's arguments have no names.
        info = latent_module(spec).plan(
            float_workspace(self.device),
            int_workspace,
            host_workspace,
            qo_indptr,
            kv_indptr,
            kv_lens,
            spec.num_qo_heads,
            spec.kv_lora_rank,
            mask == CAUSAL,
        )
        return list(info)

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
        """See `MLAGroup.run`.

        Raises:
            ValueError: heads, features, dtypes or strides that are not the group's; the kernel would read past rows.
        """
        spec, count = self.spec, self._num_rows
        out = torch.empty_like(q_latent, memory_format=torch.contiguous_format) if out is None else out
        for name, rows, width in (
            ("q_latent", q_latent, spec.kv_lora_rank),
            ("q_rope", q_rope, spec.rope_head_dim),
            ("out", out, spec.kv_lora_rank),
        ):
            self._check(name, rows, width)
        latent, rope = self.caches[layer]["kv_cache"].split((spec.kv_lora_rank, spec.rope_head_dim), dim=-1)
        self._write(kv_latent, k_rope, latent, rope, self._slots)
        if count < out.shape[0]:
            out[count:] = 0
        if self._own is None:
            return out
        queries, cache = (q_latent, q_rope), (latent, rope)
        if self._shared is None:
            self._attend(self._own, queries, cache, out[:count])
            return out
        rows = self._shared.rows
        shared = torch.empty_like(out[rows])
        own_lse, shared_lse = (torch.empty(x.shape[:2], dtype=torch.float32, device=x.device) for x in (out, shared))
        self._attend(self._own, queries, cache, out[:count], own_lse[:count])
        self._attend(self._shared, queries, cache, shared, shared_lse)
        self._merge(out[rows], own_lse[rows], shared, shared_lse)
        return out

    def _attend(
        self, planned: _Planned, queries: _Parts, cache: _Parts, out: torch.Tensor, lse: torch.Tensor | None = None
    ) -> None:
        """The planned rows of the step's queries, into `out`, and their log2-sum-exps into `lse`."""
        spec = self.spec
        latent_module(spec).run(
            float_workspace(self.device),
            planned.memory,
            planned.info,
            *(part[planned.rows] for part in queries),
            *cache,
            planned.indices,
            out,
            lse,
            planned.mask,
            spec.num_qo_heads,
            self._block_size,
            spec.scale,
            False,  # the base is 2
            1.0,  # scales of caches in float8, which these are not
            1.0,
            None,
        )

    def _check(self, name: str, rows: torch.Tensor, width: int) -> None:
        spec = self.spec
        steps = [rows.stride(0), rows.stride(1), rows.storage_offset()]
        if rows.shape[1:] != (spec.num_qo_heads, width) or rows.dtype != spec.dtype:
            raise ValueError(f"{name} {tuple(rows.shape)} {rows.dtype} does not have the heads of {spec}")
        if rows.stride(2) != 1 or any(step * rows.element_size() % ALIGNMENT for step in steps):
            raise ValueError(f"{name} has strides {rows.stride()}; rows begin at multiples of {ALIGNMENT} bytes")

    @property
    def _block_size(self) -> int:
        return self.caches[0]["kv_cache"].shape[1]
