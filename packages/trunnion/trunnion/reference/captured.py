"""The reference groups fit for full graphs: steps of uniform decodes read device tensors only, at shapes of the bucket.

Every other step runs on the reference as it is. In a full graph each of B requests has T / B tokens; padding requests
have no cached tokens, slots of -1, block 0 and state 0, in which anything may lie. What they compute is finite, and
nothing of it, nor of the reserved block and state, reaches another request or a cache.
"""

from __future__ import annotations

import torch

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.contract import BatchTensors
from trunnion.interfaces.attention import (
    AttentionSpec,
    EncoderSpec,
    Group,
    GroupSpec,
    LayerRowsSpec,
    LayerStateSpec,
    MLASpec,
    StepInputs,
)
from trunnion.reference.attention import ReferenceAttentionGroup, as_indexable, to_cache
from trunnion.reference.encoder import ReferenceEncoderGroup
from trunnion.reference.layer_state import layer_group
from trunnion.reference.mla import ReferenceMLAGroup
from trunnion.reference.recurrent import ReferenceRecurrentGroup, advance, start_states


def write_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """`cache[slots] = rows` but for slots of -1, without a shape that depends on how many there are.

    cache [num_rows, ...], slots [T], rows [T, ...]. A row without a slot puts back what lies in row 0, which is part of
    the reserved block and has no other writer.
    """
    cache, rows = as_indexable(cache), as_indexable(rows.to(cache.dtype))
    has_slot = slots >= 0
    target = slots.clamp(min=0)
    kept = cache.index_select(0, target)
    cache.index_copy_(0, target.long(), torch.where(_as_rows(has_slot, rows), rows, kept))


def gather_keys(cache: torch.Tensor, block_table: torch.Tensor, is_live: torch.Tensor) -> torch.Tensor:
    """All tokens of each request's blocks, zero where `is_live` [B, S] is not: [B, S, ...] float32.

    cache [num_blocks, block_size, ...], block_table [B, S / block_size].
    """
    keys = cache.index_select(0, block_table.flatten()).unflatten(0, block_table.shape).flatten(1, 2).float()
    return torch.where(_as_rows(is_live, keys), keys, 0.0)


class UniformDecodes:
    """Which keys the queries of a step of uniform decodes see; all of it from device tensors."""

    def __init__(self, device: BatchTensors, cache_index: int, block_size: int, window: int | None) -> None:
        group = device.groups[cache_index]
        assert group.slot_mapping is not None and group.block_table is not None and group.kv_start is not None
        self.slots = group.slot_mapping
        self.block_table = group.block_table
        num_reqs, width = group.block_table.shape
        self.query_len = self.slots.shape[0] // num_reqs
        steps = torch.arange(self.query_len, device=self.slots.device)
        first = device.seq_lens - self.query_len
        query = first.unsqueeze(1) + steps  # [B, q]
        key = group.kv_start.unsqueeze(1) + torch.arange(width * block_size, device=self.slots.device)  # [B, S]
        # Placeholders are the last rows of their request, and have no keys.
        written = (self.slots.view(num_reqs, -1) >= 0).sum(1)
        self.is_live = key < (first + written).unsqueeze(1)
        if window is not None:
            self.is_live &= key > (first - window).unsqueeze(1)
        self.is_hidden = (key.unsqueeze(1) > query.unsqueeze(2)) | ~self.is_live.unsqueeze(1)  # [B, q, S]
        if window is not None:
            self.is_hidden |= key.unsqueeze(1) <= query.unsqueeze(2) - window

    def attend(
        self, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spec: AttentionSpec, sinks: torch.Tensor | None
    ) -> torch.Tensor:
        """q [T, H, D], keys and values [B, S, Hk, D] float32 -> [T, H, D] float32; zero where nothing is seen."""
        num_reqs, num_keys = keys.shape[:2]
        q = q.float().reshape(num_reqs, self.query_len, spec.num_kv_heads, -1, q.shape[-1])  # [B, q, Hk, G, D]
        scores = torch.einsum("bnhgd,bshd->bhgns", q, keys) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        hidden = self.is_hidden[:, None, None]
        scores = scores.masked_fill(hidden, float("-inf"))
        if sinks is not None:
            sink = sinks.float().view(1, spec.num_kv_heads, -1, 1, 1)
            scores = torch.cat((scores, sink.expand(num_reqs, -1, -1, self.query_len, 1)), dim=-1)
        weights = torch.softmax(scores, dim=-1)[..., :num_keys].masked_fill(hidden, 0.0)
        return torch.einsum("bhgns,bshd->bnhgd", weights, values).flatten(0, 1).flatten(1, 2)


class CapturedAttentionGroup(ReferenceAttentionGroup):
    """Paged attention; in a full graph every request reads as many keys as its block table is wide."""

    _device: BatchTensors | None = None

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def plan(self, step: StepInputs) -> None:
        """In a full graph there is nothing to plan: `run` reads what lies at the addresses of the step."""
        self._device = step.device if step.in_full_graph else None
        if self._device is None:
            super().plan(step)

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
        if self._device is None:
            return super().run(layer, q, k, v, sinks, out=out)
        k_cache, v_cache = self.caches[layer]["k_cache"], self.caches[layer]["v_cache"]
        step = UniformDecodes(self._device, self.cache_index, k_cache.shape[1], self.spec.window)
        k_scale, v_scale = self.kv_scales[layer]
        write_rows(k_cache.flatten(0, 1), step.slots, to_cache(k, k_scale, k_cache.dtype))
        write_rows(v_cache.flatten(0, 1), step.slots, to_cache(v, v_scale, v_cache.dtype))
        keys = gather_keys(k_cache, step.block_table, step.is_live)
        values = gather_keys(v_cache, step.block_table, step.is_live)
        if self.spec.cache_dtype is not None:
            keys, values = keys * k_scale, values * v_scale
        return _into(out, step.attend(q, keys, values, self.spec, sinks).to(q.dtype))


class CapturedMLAGroup(ReferenceMLAGroup):
    """Latent attention; as `CapturedAttentionGroup`."""

    _device: BatchTensors | None = None

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def plan(self, step: StepInputs) -> None:
        """See `CapturedAttentionGroup.plan`."""
        self._device = step.device if step.in_full_graph else None
        if self._device is None:
            super().plan(step)

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
        if self._device is None:
            return super().run(layer, q_latent, q_rope, kv_latent, k_rope, out=out)
        cache = self.caches[layer]["kv_cache"]
        step = UniformDecodes(self._device, self.cache_index, cache.shape[1], None)
        write_rows(cache.flatten(0, 1), step.slots, torch.cat((kv_latent, k_rope), dim=-1))
        keys = gather_keys(cache, step.block_table, step.is_live).unsqueeze(2)  # [B, S, 1, R + Dr]
        values = keys[..., : self.spec.kv_lora_rank]
        q = torch.cat((q_latent, q_rope), dim=-1)
        return _into(out, step.attend(q, keys, values, self.latent_spec, None).to(q_latent.dtype))


class CapturedRecurrentGroup(ReferenceRecurrentGroup):
    """A gated delta net; in a full graph a padding request starts from zero and leaves state 0 as it was."""

    _device: BatchTensors | None = None

    @classmethod
    def why_not_captured(cls, spec: GroupSpec) -> str | None:
        return None

    def plan(self, step: StepInputs) -> None:
        """See `CapturedAttentionGroup.plan`."""
        self._device = step.device if step.in_full_graph else None
        if self._device is None:
            super().plan(step)

    def run(
        self,
        layer: int,
        mixed_qkv: torch.Tensor,
        g: torch.Tensor,
        beta: torch.Tensor,
        conv_weight: torch.Tensor,
        conv_bias: torch.Tensor | None,
        *,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `RecurrentGroup.run`."""
        if self._device is None:
            return super().run(layer, mixed_qkv, g, beta, conv_weight, conv_bias, out=out)
        spec, group = self.spec, self.tensors(self._device)
        assert group.state_indices is not None and group.has_initial_state is not None
        conv_state, ssm_state = self.caches[layer]["conv_state"], self.caches[layer]["ssm_state"]
        inputs = [rows.unflatten(0, (group.state_indices.shape[0], -1)) for rows in (mixed_qkv, g, beta)]
        start = start_states(group.state_indices, group.has_initial_state, group.num_accepted)
        states = [_states(state, start, group.has_initial_state != 0) for state in (conv_state, ssm_state)]
        kept = group.state_indices[:, : inputs[0].shape[1]]
        mixed, convs, ssms = advance(spec, *inputs, *states, conv_weight, conv_bias, kept.shape[1])
        # State 0 is nobody's: who has it, has no slot.
        slots = torch.where(kept > 0, kept, -1).flatten()
        write_rows(conv_state, slots, convs.flatten(0, 1))
        write_rows(ssm_state, slots, ssms.flatten(0, 1))
        return _into(out, mixed.flatten(0, 1))


def _states(states: torch.Tensor, indices: torch.Tensor, continues: torch.Tensor) -> torch.Tensor:
    """[B, ...]: zeros for requests that start here (selected, since a stale state may hold NaN)."""
    taken = states.index_select(0, indices)
    return torch.where(_as_rows(continues, taken), taken, 0.0)


def _as_rows(flags: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Flags of leading dimensions, to broadcast over what follows them in `rows`."""
    return flags.view(*flags.shape, *[1] * (rows.dim() - flags.dim()))


def _into(out: torch.Tensor | None, result: torch.Tensor) -> torch.Tensor:
    return result if out is None else out.copy_(result)


def captured_group(spec: GroupSpec) -> type[Group]:
    """The reference's group for `spec`, fit for graphs; as it is, where no full graph can hold it."""
    if isinstance(spec, LayerStateSpec | LayerRowsSpec):
        return layer_group(spec)[0]
    if isinstance(spec, AttentionSpec):
        return CapturedAttentionGroup
    if isinstance(spec, MLASpec):
        return CapturedMLAGroup
    return ReferenceEncoderGroup if isinstance(spec, EncoderSpec) else CapturedRecurrentGroup
