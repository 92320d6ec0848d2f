"""Latent attention in plain torch: every head attends to one shared latent key, whose first part is the value."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunnion.contract import CacheTensorSpec
from trunnion.interfaces.attention import AttentionSpec, GroupSpec, MLAGroup, MLASpec, StepInputs
from trunnion.reference.attention import SCORE_BYTES, attend


@dataclass(frozen=True, slots=True)
class LatentRequest:
    """One request of the step: its rows, and the latents its queries can see."""

    first_row: int
    num_rows: int
    blocks: torch.Tensor
    """Block ids, int64 on the device."""
    num_keys: int
    unwritten: torch.Tensor
    """Keys of this step that have no slot (padded drafts): taken as zero, their cache rows hold anything."""


class ReferenceMLAGroup(MLAGroup):
    """One cache per layer, `kv_cache` [num_blocks, block_size, kv_lora_rank + rope_head_dim].

    Rows beyond the step's tokens are neither read nor written and give zeros.
    """

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, MLASpec), f"latent attention cannot run {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self.latent_spec = AttentionSpec(
            num_qo_heads=spec.num_qo_heads,
            num_kv_heads=1,
            head_dim=spec.kv_lora_rank + spec.rope_head_dim,
            scale=spec.scale,
            dtype=spec.dtype,
        )
        self.requests: list[LatentRequest] = []
        self.written_rows = torch.empty(0, dtype=torch.int64)
        self.written_slots = torch.empty(0, dtype=torch.int64)

    @classmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        assert isinstance(spec, MLASpec), f"latent attention cannot run {spec}"
        shape = (block_size, spec.kv_lora_rank + spec.rope_head_dim)
        return (CacheTensorSpec(name="kv_cache", shape=shape, dtype=spec.dtype),)

    def plan(self, step: StepInputs) -> None:
        """Find each request's rows and blocks, and the rows that have a slot, from the host's copies."""
        counts, host, group = step.counts, step.host, self.tensors(step.host)
        assert counts.lens_are_exact, "the reference latent attention needs exact host lengths"
        assert group.slot_mapping is not None and group.block_table is not None
        starts = host.query_start_loc[: counts.num_reqs + 1].tolist()
        seq_lens = host.seq_lens[: counts.num_reqs].tolist()
        self.requests = [
            self._plan_request(start, seq_len, group.block_table[index], group.slot_mapping[start:end] < 0)
            for index, (start, end, seq_len) in enumerate(zip(starts[:-1], starts[1:], seq_lens, strict=True))
            if end > start
        ]
        slots = group.slot_mapping[: counts.num_tokens]
        rows = torch.nonzero(slots >= 0).flatten()
        self.written_rows = rows.to(self.device)
        self.written_slots = slots[rows].long().to(self.device)

    def _plan_request(
        self, first_row: int, seq_len: int, block_row: torch.Tensor, without_slot: torch.Tensor
    ) -> LatentRequest:
        num_rows = without_slot.shape[0]
        num_blocks = -(-seq_len // self.caches[0]["kv_cache"].shape[1])
        return LatentRequest(
            first_row=first_row,
            num_rows=num_rows,
            blocks=block_row[:num_blocks].long().to(self.device),
            num_keys=seq_len,
            unwritten=(torch.nonzero(without_slot).flatten() + seq_len - num_rows).to(self.device),
        )

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
        cache = self.caches[layer]["kv_cache"]
        new = torch.cat((kv_latent, k_rope), dim=-1).index_select(0, self.written_rows)
        cache.view(-1, cache.shape[-1]).index_copy_(0, self.written_slots, new.to(cache.dtype))
        q = torch.cat((q_latent, q_rope), dim=-1)
        out = q_latent.new_zeros(q_latent.shape) if out is None else out.zero_()
        for request in self.requests:
            keys = cache.index_select(0, request.blocks).flatten(0, 1)[: request.num_keys]
            keys = keys.index_fill(0, request.unwritten, 0).unsqueeze(1)  # [s, 1, R + Dr]
            values = keys[..., : self.spec.kv_lora_rank]
            rows_per_slice = max(1, SCORE_BYTES // (4 * q.shape[1] * request.num_keys))
            own_key = request.num_keys - request.num_rows
            for first in range(0, request.num_rows, rows_per_slice):
                last = min(first + rows_per_slice, request.num_rows)
                rows = slice(request.first_row + first, request.first_row + last)
                out[rows] = attend(q[rows], keys, values, self.latent_spec, own_key + first, None).to(out.dtype)
        return out
