"""A gated delta net's states in plain torch: read a request's state, run the operators, write it back."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.contract import CacheTensorSpec
from trunnion.interfaces.attention import GroupSpec, RecurrentGroup, RecurrentSpec, StepInputs


@dataclass(frozen=True, slots=True)
class PlannedStates:
    """Neighbouring requests of equal length, run as one batch."""

    rows: slice
    states: torch.Tensor
    """[B] int64 on the device."""
    is_fresh: torch.Tensor
    """[B] bool on the device: the state is taken as zero, whatever it holds."""


class ReferenceRecurrentGroup(RecurrentGroup):
    """Per layer `conv_state` [num_states, conv_dim, kernel - 1] and `ssm_state` [num_states, Hv, Dk, Dv] float32.

    Rows and states beyond the step's requests are neither read nor written; such rows give zeros.
    """

    def __init__(self, spec: GroupSpec, num_layers: int, device: torch.device) -> None:
        assert isinstance(spec, RecurrentSpec), f"a gated delta net cannot run {spec}"
        super().__init__(spec, num_layers, device)
        self.spec = spec
        self.batches: list[PlannedStates] = []

    @classmethod
    def cache_tensors(cls, spec: GroupSpec, block_size: int) -> tuple[CacheTensorSpec, ...]:
        assert isinstance(spec, RecurrentSpec), f"a gated delta net cannot run {spec}"
        conv = (spec.conv_dim, spec.conv_kernel_size - 1)
        ssm = (spec.num_v_heads, spec.head_k_dim, spec.head_v_dim)
        return (
            CacheTensorSpec(name="conv_state", shape=conv, dtype=spec.dtype),
            CacheTensorSpec(name="ssm_state", shape=ssm, dtype=spec.state_dtype),
        )

    def plan(self, step: StepInputs) -> None:
        """All decodes are one batch, every other request is its own; read from the host's copies."""
        counts, group = step.counts, self.tensors(step.host)
        assert group.state_indices is not None and group.has_initial_state is not None
        starts = step.host.query_start_loc[: counts.num_reqs + 1].tolist()
        edges = [0, *range(counts.num_decodes or 1, counts.num_reqs + 1)] if counts.num_reqs else []
        self.batches = [
            PlannedStates(
                rows=slice(starts[first], starts[last]),
                states=group.state_indices[first:last, 0].long().to(self.device),
                is_fresh=(group.has_initial_state[first:last] == 0).to(self.device),
            )
            for first, last in itertools.pairwise(edges)
            if starts[last] > starts[first]
        ]

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
        spec = self.spec
        conv_state, ssm_state = self.caches[layer]["conv_state"], self.caches[layer]["ssm_state"]
        key_dim = spec.num_k_heads * spec.head_k_dim
        if out is None:
            out = mixed_qkv.new_empty(mixed_qkv.shape[0], spec.num_v_heads, spec.head_v_dim)
        out.zero_()
        for batch in self.batches:
            shape = (len(batch.states), -1)
            x, new_conv = torch.ops.trunnion.causal_conv1d_silu(
                mixed_qkv[batch.rows].unflatten(0, shape), _taken(conv_state, batch), conv_weight, conv_bias
            )
            q, k, v = x.split((key_dim, key_dim, spec.num_v_heads * spec.head_v_dim), dim=-1)
            mixed, new_ssm = torch.ops.trunnion.gated_delta_rule(
                q.unflatten(-1, (spec.num_k_heads, -1)),
                k.unflatten(-1, (spec.num_k_heads, -1)),
                v.unflatten(-1, (spec.num_v_heads, -1)),
                g[batch.rows].unflatten(0, shape),
                beta[batch.rows].unflatten(0, shape),
                _taken(ssm_state, batch),
            )
            conv_state.index_copy_(0, batch.states, new_conv)
            ssm_state.index_copy_(0, batch.states, new_ssm)
            out[batch.rows] = mixed.flatten(0, 1)
        return out


def _taken(states: torch.Tensor, batch: PlannedStates) -> torch.Tensor:
    """The batch's states, zeros for requests that start here (selected, since a stale state may hold NaN)."""
    taken = states.index_select(0, batch.states)
    return taken.masked_fill(batch.is_fresh.view(-1, *[1] * (taken.dim() - 1)), 0)
