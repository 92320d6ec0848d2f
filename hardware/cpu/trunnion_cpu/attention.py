"""Paged attention on CPUs: gathers planned once per step for all layers, fused attention over the gathered rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from trunnion.contract import GroupTensors
from trunnion.interfaces.attention import AttentionSpec, GroupSpec, StepInputs
from trunnion.reference.attention import SCORE_BYTES, ReferenceAttentionGroup

_MAX_WASTE = 1.5
"""A batch of decodes is cut where padding to its longest request would gather this many times the real rows."""
_GATHER_BYTES = 8 << 20
"""Keys (and as many values) gathered at a time, unless one request alone needs more."""


@dataclass(slots=True)
class _Decodes:
    """Decode requests of similar length, padded to the longest; padded columns repeat a live row and are masked."""

    rows: torch.Tensor | slice
    """Tokens of the step, `decode_query_len` per request."""
    count: int
    query_len: int
    slots: torch.Tensor
    """[count * longest] cache rows."""
    mask: torch.Tensor | None
    """[count, 1, query_len, longest] bool, None when every column of every query is visible."""


@dataclass(slots=True)
class _Prefill:
    """One request with several tokens: whole (keys are the step's own) or a chunk (keys come from the cache)."""

    rows: slice
    slots: torch.Tensor | None
    mask: torch.Tensor | None
    """[queries, keys] bool; None means causal over the step's own keys."""


def _visible(spec: AttentionSpec, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Which key positions a query position sees; both broadcast."""
    seen = keys <= queries
    if spec.window is not None:
        seen &= keys > queries - spec.window
    return seen


def _batches(lengths: Sequence[int], max_rows: int) -> list[list[int]]:
    """Requests in batches of similar length that gather at most `max_rows` rows, longest first."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    batches: list[list[int]] = []
    longest = total = 0
    for index in order:
        total += lengths[index]
        padded = longest * (len(batches[-1]) + 1) if batches else 0
        if not batches or padded > min(_MAX_WASTE * total, max_rows):
            batches.append([])
            longest = total = lengths[index]
        batches[-1].append(index)
    return batches


class CpuAttentionGroup(ReferenceAttentionGroup):
    """Same caches and same results as the reference; the gather indices and masks are built in `plan`.

    Gathered rows land in two workspaces that all layers share: a fresh tensor of this size would be mapped and cleared
    by the system at every call, which costs several times the copy.
    """

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        super().__init__(spec, num_layers, device)
        row = (self.spec.num_kv_heads, self.spec.head_dim)
        self._rows_at_a_time = _GATHER_BYTES // (row[0] * row[1] * self.spec.dtype.itemsize)
        self._gathered = [torch.empty(0, *row, dtype=self.spec.dtype) for _ in range(2)]

    def plan(self, step: StepInputs) -> None:
        host, counts = step.host, step.counts
        meta = self.tensors(host)
        assert meta.slot_mapping is not None and meta.block_table is not None and meta.kv_start is not None
        self.plan_writes(step)
        starts = host.query_start_loc.tolist()
        ends = host.seq_lens.tolist()
        written = self._written_ends(meta, starts, ends)
        self._decodes = self._plan_decodes(
            meta, counts.num_decodes, counts.decode_query_len, starts, ends, written, meta.kv_start.tolist()
        )
        self._reserve(max((batch.slots.shape[0] for batch in self._decodes), default=0))
        self._prefills = self.plan_prefills(step)
        self._live_tokens = starts[counts.num_reqs]

    def plan_prefills(self, step: StepInputs) -> list[_Prefill]:
        """What requests behind the decodes read, with room in the workspaces for it."""
        host, counts = step.host, step.counts
        meta = self.tensors(host)
        assert meta.kv_start is not None
        starts, ends, drops = host.query_start_loc.tolist(), host.seq_lens.tolist(), meta.kv_start.tolist()
        written = self._written_ends(meta, starts, ends)
        planned = [
            self._plan_prefill(
                meta, request, starts[request], starts[request + 1], ends[request], written[request], drops[request]
            )
            for request in range(counts.num_decodes, counts.num_reqs)
            if starts[request + 1] > starts[request]
        ]
        self._reserve(max((prefill.slots.shape[0] for prefill in planned if prefill.slots is not None), default=0))
        return planned

    def _reserve(self, rows: int) -> None:
        """Let the workspaces hold `rows` rows; they only grow."""
        if rows > self._gathered[0].shape[0]:
            self._gathered = [torch.empty(rows, *old.shape[1:], dtype=old.dtype) for old in self._gathered]

    def _gather(self, keys: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> list[torch.Tensor]:
        """The rows of `slots` of both caches, in the workspaces."""
        rows = slots.shape[0]
        return [
            torch.index_select(cache, 0, slots, out=work[:rows])
            for cache, work in zip((keys, values), self._gathered, strict=True)
        ]

    def _first_key(self, first_query: int, dropped: int) -> int:
        """Position of the first key that any query of a request sees."""
        window = self.spec.window
        return dropped if window is None else max(dropped, first_query - window + 1)

    def _plan_decodes(
        self,
        meta: GroupTensors,
        count: int,
        query_len: int,
        starts: list[int],
        ends: list[int],
        written: list[int],
        drops: list[int],
    ) -> list[_Decodes]:
        firsts = [self._first_key(ends[b] - query_len, drops[b]) for b in range(count)]
        lengths = [ends[b] - firsts[b] for b in range(count)]
        planned = []
        for batch in _batches(lengths, self._rows_at_a_time):
            longest = max(lengths[b] for b in batch)
            first = torch.tensor([firsts[b] for b in batch]).unsqueeze(1)
            last = torch.tensor([ends[b] - 1 for b in batch]).unsqueeze(1)
            last_written = torch.tensor([written[b] - 1 for b in batch]).unsqueeze(1)
            dropped = torch.tensor([drops[b] for b in batch]).unsqueeze(1)
            # Columns past a request's last written row repeat it: what is masked must still be finite.
            keys = first + torch.arange(longest)
            table = meta.block_table[torch.tensor(batch)]
            slots = self._slots_of(table, torch.minimum(keys, last_written).maximum(first) - dropped)
            mask = None
            if query_len > 1 or any(lengths[b] != longest for b in batch):
                queries = last - query_len + 1 + torch.arange(query_len)
                mask = _visible(self.spec, queries.unsqueeze(2), keys.unsqueeze(1)).unsqueeze(1)
            planned.append(
                _Decodes(
                    rows=self._decode_rows(batch, starts, query_len, count),
                    count=len(batch),
                    query_len=query_len,
                    slots=slots.flatten(),
                    mask=mask,
                )
            )
        return planned

    @staticmethod
    def _written_ends(meta: GroupTensors, starts: list[int], ends: list[int]) -> list[int]:
        """Per request the position after its last row with a slot; placeholders are the last rows of a request."""
        slots = meta.slot_mapping[: starts[-1]]
        missing = torch.zeros(starts[-1] + 1, dtype=torch.int64)
        torch.cumsum(slots < 0, 0, out=missing[1:])
        before = missing.tolist()
        return [end - (before[starts[b + 1]] - before[starts[b]]) for b, end in enumerate(ends)]

    @staticmethod
    def _decode_rows(batch: list[int], starts: list[int], query_len: int, count: int) -> torch.Tensor | slice:
        if len(batch) == count and batch == list(range(count)):
            return slice(0, count * query_len)
        return torch.tensor([starts[b] + offset for b in batch for offset in range(query_len)])

    def _plan_prefill(
        self, meta: GroupTensors, request: int, start: int, stop: int, end: int, written: int, dropped: int
    ) -> _Prefill:
        rows = slice(start, stop)
        first_query = end - (stop - start)
        window = self.spec.window
        if first_query == 0 and (window is None or window >= end):
            return _Prefill(rows=rows, slots=None, mask=None)
        queries = torch.arange(first_query, end).unsqueeze(1)
        if first_query == 0:
            return _Prefill(rows=rows, slots=None, mask=_visible(self.spec, queries, torch.arange(end).unsqueeze(0)))
        keys = torch.arange(self._first_key(first_query, dropped), end)
        stored = keys.clamp(max=written - 1)
        slots = self._slots_of(meta.block_table[request : request + 1], (stored - dropped).unsqueeze(0)).flatten()
        return _Prefill(rows=rows, slots=slots, mask=_visible(self.spec, queries, keys.unsqueeze(0)))

    def _slots_of(self, table: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """table [b, max_blocks], offsets [b, n] counted from the table's first token -> cache rows [b, n]."""
        size = self.caches[0]["k_cache"].shape[1]
        return table.gather(1, offsets // size).to(torch.int64) * size + offsets % size

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
        keys, values = self.write(layer, k, v)
        if out is None:
            out = torch.empty_like(q)
        out[self._live_tokens :] = 0
        for batch in self._decodes:
            out[batch.rows] = self._decode(q[batch.rows], keys, values, batch, sinks)
        self.run_prefills(q, k, v, keys, values, sinks, out)
        return out

    def run_prefills(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        sinks: torch.Tensor | None,
        out: torch.Tensor,
    ) -> None:
        """Write the rows of planned prefills to `out`; `keys` and `values` are the caches by token."""
        for prefill in self._prefills:
            rows = prefill.rows
            if prefill.slots is None:
                own_k, own_v = k[rows], v[rows]
            else:
                own_k, own_v = self._gather(keys, values, prefill.slots)
            out[rows] = self._attend_causal(q[rows], own_k, own_v, prefill.mask, sinks)

    def _decode(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, batch: _Decodes, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        spec = self.spec
        count, query_len, group = batch.count, batch.query_len, spec.num_qo_heads // spec.num_kv_heads
        k, v = (
            rows.view(count, -1, spec.num_kv_heads, spec.head_dim).transpose(1, 2)  # [count, Hkv, longest, D]
            for rows in self._gather(keys, values, batch.slots)
        )
        # The query heads that share a KV head become queries of one attention: no K/V is repeated.
        q = q.view(count, query_len, spec.num_kv_heads, group, spec.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(count, spec.num_kv_heads, group * query_len, spec.head_dim)
        mask = batch.mask
        if mask is not None:
            mask = mask.repeat(1, 1, group, 1)  # [count, 1, group * query_len, longest]
        if sinks is not None:
            sinks = sinks.view(1, spec.num_kv_heads, group, 1).expand(-1, -1, -1, query_len).flatten(2)
        out = self._softmax_attention(q, k, v, mask, sinks)
        out = out.view(count, spec.num_kv_heads, group, query_len, spec.head_dim).permute(0, 3, 1, 2, 4)
        return out.reshape(count * query_len, spec.num_qo_heads, spec.head_dim)

    def _attend_causal(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """q [n, H, D]; k, v [m, Hkv, D] -> [n, H, D]."""
        spec = self.spec
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        if sinks is None and spec.soft_cap is None:
            out = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=spec.scale, enable_gqa=q.shape[1] != k.shape[1]
            )
            return out.squeeze(0).transpose(0, 1)
        if mask is None:
            mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril_()
        group = spec.num_qo_heads // spec.num_kv_heads
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        if sinks is not None:
            sinks = sinks.view(1, -1, 1)
        rows = max(1, SCORE_BYTES // (4 * q.shape[1] * k.shape[2]))
        parts = [
            self._softmax_attention(queries, k, v, visible, sinks)
            for queries, visible in zip(q.split(rows, 2), mask.split(rows, 0), strict=True)
        ]
        return torch.cat(parts, 2).squeeze(0).transpose(0, 1)

    def _softmax_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        sinks: torch.Tensor | None,
    ) -> torch.Tensor:
        """Fused where torch has it, written out for a soft cap or sinks. All [b, H, n, D], sinks [b, H, n]."""
        spec = self.spec
        if sinks is None and spec.soft_cap is None:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.scale)
        scores = torch.matmul(q.float(), k.float().transpose(2, 3)) * spec.scale
        if spec.soft_cap is not None:
            scores = torch.tanh(scores / spec.soft_cap) * spec.soft_cap
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        if sinks is not None:
            # The sink takes its share of the softmax and gives no value.
            scores = torch.cat([scores, sinks.float().unsqueeze(3).expand(*scores.shape[:3], 1)], dim=3)
        weights = scores.softmax(dim=3)
        if sinks is not None:
            weights = weights[..., :-1]
        return torch.matmul(weights, v.float()).to(q.dtype)
