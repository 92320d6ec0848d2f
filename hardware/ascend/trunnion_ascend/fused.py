"""The fused attention operator, as both kinds of groups call it: queries one after the other (TND), paged keys.

A call takes its lengths from the host, and writes into memory that is made outside of it. So it can be issued again
with the lengths of another step, which is what a task update does (task_updates.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch_npu

from trunnion.interfaces.attention import StepInputs
from trunnion_ascend.runs import Runs, runs_of

LAYOUT = "TND"
CAUSAL, BAND = 3, 4
"""Modes of the mask, both aligned to the last query and the last key of a run."""
MASK_SIZE = 2048


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What stays the same from call to call."""

    num_query_heads: int
    num_kv_heads: int
    scale: float
    window: int | None = None
    """Keys that a query sees, its own included."""
    max_rows: int | None = None
    """Queries of one run."""

    @property
    def sparse_mode(self) -> int:
        return CAUSAL if self.window is None else BAND

    @property
    def keys_before(self) -> int:
        """How many keys before its own a query sees; the operator reads it with a window only."""
        return MASK_SIZE if self.window is None else self.window - 1


@dataclass(frozen=True, kw_only=True)
class Keys:
    """The cache of a layer, [num_blocks, block_size, features] each."""

    key: torch.Tensor
    value: torch.Tensor
    rope: torch.Tensor | None = None
    """The rotated part of latent keys."""


class FusedAttention:
    """The operator for one group: planned once per step, called once per layer."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        # 1 hides a key. The operator takes what it needs of this one mask, whatever the lengths are.
        self._mask = torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.int8, device=device).triu_(1)
        self._no_sums = torch.zeros(1, dtype=torch.float32, device=device)
        self._workspaces: dict[tuple[int, int], torch.Tensor] = {}
        self._tables: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._table = torch.empty(0, 0, dtype=torch.int32, device=device)
        self._runs = Runs([], [], np.empty(0, np.int32))
        self._in_full_graph = False

    @property
    def num_rows(self) -> int:
        """Rows of the planned step; those behind them are nobody's."""
        return self._runs.num_rows

    def plan(self, step: StepInputs, cache_index: int) -> None:
        """Find the step's runs from the host's copies, and their block tables.

        Raises:
            ValueError: more runs than the operator takes, or longer ones in a full graph.
        """
        table = step.device.groups[cache_index].block_table
        slots = step.device.groups[cache_index].slot_mapping
        assert table is not None and slots is not None, "attention groups have a block table and slots"
        self._in_full_graph = step.in_full_graph
        if not step.in_full_graph:
            self._runs = runs_of(step, cache_index, max_rows=self.shape.max_rows)
            self._table = table[: step.counts.num_reqs]
            if not self._runs.is_one_each:
                self._table = self._table.index_select(0, self._to_device(self._runs.requests))
            return
        padded_reqs = table.shape[0]
        query_len = slots.shape[0] // padded_reqs
        if self.shape.max_rows is not None and query_len > self.shape.max_rows:
            raise ValueError(
                f"decodes of {query_len} tokens are longer than the {self.shape.max_rows} of a run: lower "
                "max_decode_query_len"
            )
        self._runs = runs_of(step, cache_index, padded_reqs=padded_reqs, query_len=query_len)
        self._table = table if query_len == 1 else self._two_each(table)

    def _two_each(self, table: torch.Tensor) -> torch.Tensor:
        """Each request's table twice, where graphs of this many requests read it."""
        count = table.shape[0]
        if count not in self._tables:
            index = self._to_device(np.repeat(np.arange(count, dtype=np.int32), 2))
            self._tables[count] = index, table.new_zeros(2 * count, table.shape[1])
        index, buffer = self._tables[count]
        return torch.index_select(table, 0, index, out=buffer)

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        # From memory that is not pinned the host would wait for the copy, and all that was enqueued before it.
        return torch.from_numpy(values).pin_memory().to(self._mask.device, non_blocking=True)

    def attend(
        self,
        keys: Keys,
        query: torch.Tensor,
        out: torch.Tensor,
        query_rope: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Attention of the planned step's rows: query [T, H, D] and query_rope [T, H, R] -> `out` [T, H, Dv].

        Sinks [H] are in bfloat16. Rows of `out` behind the step's are left alone.
        """
        rows, runs, shape = self.num_rows, self._runs, self.shape
        if rows < query.shape[0]:
            query, out = query[:rows], out[:rows]
            query_rope = None if query_rope is None else query_rope[:rows]
        torch_npu.npu_fused_infer_attention_score_v2.out(
            query,
            keys.key,
            keys.value,
            query_rope=query_rope,
            key_rope=keys.rope,
            atten_mask=self._mask,
            actual_seq_qlen=runs.query_ends,
            actual_seq_kvlen=runs.num_keys,
            block_table=self._table,
            learnable_sink=sinks,
            num_query_heads=shape.num_query_heads,
            num_key_value_heads=shape.num_kv_heads,
            softmax_scale=shape.scale,
            pre_tokens=shape.keys_before,
            next_tokens=0,
            input_layout=LAYOUT,
            sparse_mode=shape.sparse_mode,
            block_size=keys.key.shape[1],
            workspace=self._workspaces[self._bucket] if self._in_full_graph else None,
            out=[out, self._no_sums],
        )

    @property
    def _bucket(self) -> tuple[int, int]:
        return self.num_rows, len(self._runs.num_keys)

    def prepare(
        self,
        keys: Keys,
        query: torch.Tensor,
        query_rope: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> None:
        """Make the workspace of a full graph, if it is the first call in this bucket: it serves every replay."""
        if not self._in_full_graph or self._bucket in self._workspaces:
            return
        runs, shape = self._runs, self.shape
        found = torch_npu._npu_fused_infer_attention_score_v2_get_max_workspace(
            query,
            keys.key,
            keys.value,
            query_rope=query_rope,
            key_rope=keys.rope,
            atten_mask=self._mask,
            actual_seq_qlen=runs.query_ends,
            actual_seq_kvlen=runs.num_keys,
            block_table=self._table,
            learnable_sink=sinks,
            num_query_heads=shape.num_query_heads,
            num_key_value_heads=shape.num_kv_heads,
            softmax_scale=shape.scale,
            pre_tokens=shape.keys_before,
            next_tokens=0,
            input_layout=LAYOUT,
            sparse_mode=shape.sparse_mode,
            block_size=keys.key.shape[1],
        )
        # Graphs run one after the other, and layers too: the largest that there is will do.
        largest = max(self._workspaces.values(), key=torch.Tensor.numel, default=found)
        self._workspaces[self._bucket] = max(largest, found, key=torch.Tensor.numel)
