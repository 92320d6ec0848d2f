"""Paged attention in plain torch: a loop over requests, scores written out, softmax in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunnion.contract import CacheTensorSpec
from trunnion.interfaces.attention import AttentionGroup, AttentionSpec, GroupSpec, StepInputs

SCORE_BYTES = 64 << 20
"""Queries are taken in slices whose float32 scores fit in this many bytes."""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the step: its rows, and the keys its queries can see."""

    first_row: int
    num_rows: int
    blocks: torch.Tensor
    """Block ids from the first visible key's block to the last key's, int64 on the device."""
    first_key: int
    """Offset of the first visible key within `blocks`."""
    num_keys: int
    unwritten: torch.Tensor
    """Visible keys of this step that have no slot (padded drafts): taken as zero, their cache rows hold anything."""

    @property
    def key_offset(self) -> int:
        """Row i's own key is number `i + key_offset` of the visible keys."""
        return self.num_keys - self.num_rows


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spec: AttentionSpec, key_offset: int, sinks: torch.Tensor | None
) -> torch.Tensor:
    """Causal attention of one request: q [n, H, D], k and v [s, Hk, D] -> [n, H, D] float32.

    Query i sees key j when `i + key_offset - window < j <= i + key_offset`. Query heads h * H / Hk ... share KV head h.
    """
    num_queries, num_keys = q.shape[0], k.shape[0]
    q = q.float().unflatten(1, (spec.num_kv_heads, -1))  # [n, Hk, G, D]
    scores = torch.einsum("nhgd,shd->hgns", q, k.float()) * spec.scale
    if spec.soft_cap is not None:
        scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
    own_key = torch.arange(num_queries, device=q.device).unsqueeze(1) + key_offset
    key = torch.arange(num_keys, device=q.device)
    hidden = key > own_key
    if spec.window is not None:
        hidden |= key <= own_key - spec.window
    scores = scores.masked_fill(hidden, float("-inf"))
    if sinks is not None:
        sink = sinks.float().view(spec.num_kv_heads, -1, 1, 1).expand(-1, -1, num_queries, 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = torch.softmax(scores, dim=-1)[..., :num_keys]
    return torch.einsum("hgns,shd->nhgd", weights, v.float()).flatten(1, 2)


def to_cache(rows: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Rows as a cache of another dtype holds them: divided by the layer's scale, and cut to the dtype's range."""
    if rows.dtype == dtype:
        return rows
    limit = torch.finfo(dtype).max
    return (rows.float() / scale).clamp(-limit, limit).to(dtype)


def as_indexable(cache: torch.Tensor) -> torch.Tensor:
    """The same memory in a dtype that torch can index: it cannot copy rows of float8."""
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache


class ReferenceAttentionGroup(AttentionGroup):
    """Caches are `k_cache` and `v_cache`, `[num_blocks, block_size, num_kv_heads, head_dim]`.

    Rows beyond the step's tokens are neither read nor written and give zeros.
    """

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, AttentionSpec), f"paged attention cannot run {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self.requests: list[PlannedRequest] = []
        self.written_rows = torch.empty(0, dtype=torch.int64)
        self.written_slots = torch.empty(0, dtype=torch.int64)

    @classmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        assert isinstance(spec, AttentionSpec), f"paged attention cannot run {spec}"
        shape = (block_size, spec.num_kv_heads, spec.head_dim)
        return tuple(
            CacheTensorSpec(name=name, shape=shape, dtype=spec.stored_dtype) for name in ("k_cache", "v_cache")
        )

    def plan(self, step: StepInputs) -> None:
        """Find each request's rows and visible keys, and the rows that have a slot, from the host's copies."""
        counts, host, group = step.counts, step.host, self.tensors(step.host)
        assert counts.lens_are_exact, "the reference attention needs exact host lengths"
        assert group.slot_mapping is not None and group.block_table is not None and group.kv_start is not None
        self.plan_writes(step)
        starts = host.query_start_loc[: counts.num_reqs + 1].tolist()
        seq_lens = host.seq_lens[: counts.num_reqs].tolist()
        kv_starts = group.kv_start[: counts.num_reqs].tolist()
        self.requests = [
            self._plan_request(start, seq_len, kv_start, group.block_table[index], group.slot_mapping[start:end] < 0)
            for index, (start, end, seq_len, kv_start) in enumerate(
                zip(starts[:-1], starts[1:], seq_lens, kv_starts, strict=True)
            )
            if end > start
        ]

    def plan_writes(self, step: StepInputs) -> None:
        """Find the rows of the step that have a slot."""
        mapping = self.tensors(step.host).slot_mapping
        assert mapping is not None
        slots = mapping[: step.counts.num_tokens]
        rows = torch.nonzero(slots >= 0).flatten()
        self.written_rows = rows.to(self.device)
        self.written_slots = slots[rows].long().to(self.device)

    def write(self, layer: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the rows that have a slot -> both caches by token, [num_blocks * block_size, Hk, D]."""
        rows_of = []
        for name, new, scale in zip(("k_cache", "v_cache"), (k, v), self.kv_scales[layer], strict=True):
            cache = self.caches[layer][name]
            by_token = cache.view(-1, *cache.shape[2:])
            rows = to_cache(new.index_select(0, self.written_rows), scale, cache.dtype)
            as_indexable(by_token).index_copy_(0, self.written_slots, as_indexable(rows))
            rows_of.append(by_token)
        return rows_of[0], rows_of[1]

    def _plan_request(
        self, first_row: int, seq_len: int, kv_start: int, block_row: torch.Tensor, without_slot: torch.Tensor
    ) -> PlannedRequest:
        num_rows = without_slot.shape[0]
        block_size = self.caches[0]["k_cache"].shape[1]
        first_visible = kv_start
        if self.spec.window is not None:
            first_visible = max(kv_start, seq_len - num_rows - self.spec.window + 1)
        skipped_blocks = (first_visible - kv_start) // block_size
        num_keys = seq_len - first_visible
        end_block = -(-(seq_len - kv_start) // block_size)
        return PlannedRequest(
            first_row=first_row,
            num_rows=num_rows,
            blocks=block_row[skipped_blocks:end_block].long().to(self.device),
            first_key=first_visible - kv_start - skipped_blocks * block_size,
            num_keys=num_keys,
            unwritten=(torch.nonzero(without_slot).flatten() + num_keys - num_rows).to(self.device),
        )

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
        """See `AttentionGroup.run`."""
        self.write(layer, k, v)
        k_cache, v_cache = self.caches[layer]["k_cache"], self.caches[layer]["v_cache"]
        out = q.new_zeros(q.shape) if out is None else out.zero_()
        for request in self.requests:
            keys = self._visible(k_cache, self.kv_scales[layer][0], request)
            values = self._visible(v_cache, self.kv_scales[layer][1], request)
            rows_per_slice = max(1, SCORE_BYTES // (4 * q.shape[1] * request.num_keys))
            for first in range(0, request.num_rows, rows_per_slice):
                last = min(first + rows_per_slice, request.num_rows)
                rows = slice(request.first_row + first, request.first_row + last)
                out[rows] = attend(q[rows], keys, values, self.spec, request.key_offset + first, sinks).to(q.dtype)
        return out

    def _visible(self, cache: torch.Tensor, scale: float, request: PlannedRequest) -> torch.Tensor:
        """[num_keys, Hk, D], in float32 where the cache is scaled."""
        tokens = cache.index_select(0, request.blocks).flatten(0, 1)
        visible = tokens[request.first_key : request.first_key + request.num_keys]
        if self.spec.cache_dtype is not None:
            visible = visible.float() * scale
        return visible.index_fill_(0, request.unwritten, 0)
