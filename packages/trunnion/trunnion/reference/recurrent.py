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
    start: torch.Tensor
    """[B] int64 on the device: the state that each request starts from."""
    is_fresh: torch.Tensor
    """[B] bool on the device: the state is taken as zero, whatever it holds."""
    kept: torch.Tensor
    """[B, n] int64 on the device: where the states after the last n tokens go."""


class ReferenceRecurrentGroup(RecurrentGroup):
    """Per layer `conv_state` [num_states, conv_dim, kernel - 1] and `ssm_state` [num_states, Hv, Dk, Dv] float32.

    Rows and states beyond the step's requests are neither read nor written; such rows give zeros. Decodes of several
    tokens, which verify drafts, run as that many decodes of one token, so that the state after each can be kept.
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
        first_states = start_states(group.state_indices, group.has_initial_state, group.num_accepted).long()
        states, length = group.state_indices.long(), counts.decode_query_len
        edges = [0, *range(counts.num_decodes or 1, counts.num_reqs + 1)] if counts.num_reqs else []
        self.batches = [
            PlannedStates(
                rows=slice(starts[first], starts[last]),
                start=first_states[first:last].to(self.device),
                is_fresh=(group.has_initial_state[first:last] == 0).to(self.device),
                kept=states[first:last, : length if first < counts.num_decodes else 1].to(self.device),
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
        if out is None:
            out = mixed_qkv.new_empty(mixed_qkv.shape[0], spec.num_v_heads, spec.head_v_dim)
        out.zero_()
        for batch in self.batches:
            inputs = [rows[batch.rows].unflatten(0, (len(batch.start), -1)) for rows in (mixed_qkv, g, beta)]
            states = _taken(conv_state, batch), _taken(ssm_state, batch)
            mixed, convs, ssms = advance(spec, *inputs, *states, conv_weight, conv_bias, batch.kept.shape[1])
            conv_state.index_copy_(0, batch.kept.flatten(), convs.flatten(0, 1))
            ssm_state.index_copy_(0, batch.kept.flatten(), ssms.flatten(0, 1))
            out[batch.rows] = mixed.flatten(0, 1)
        return out


def start_states(
    state_indices: torch.Tensor, has_initial_state: torch.Tensor, num_accepted: torch.Tensor | None
) -> torch.Tensor:
    """The state that each request starts from: [B] of `state_indices` [B, W].

    It is the one after the last accepted token, in column `num_accepted - 1`. Of a request that starts from nothing
    `num_accepted` says nothing, and the first column will do.
    """
    if num_accepted is None:
        return state_indices[:, 0]
    column = torch.where(has_initial_state != 0, num_accepted - 1, 0)
    return state_indices.gather(1, column.long().unsqueeze(1)).squeeze(1)


def advance(
    spec: RecurrentSpec,
    mixed_qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    conv: torch.Tensor,
    ssm: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
    num_states: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run S tokens of B requests on their states -> [B, S, Hv, Dv], and the last `num_states` states of either kind.

    mixed_qkv [B, S, conv_dim], g and beta [B, S, Hv], conv [B, conv_dim, kernel - 1], ssm [B, Hv, Dk, Dv]; the states
    have one dimension more, [B, num_states, ...]. Either the last one alone is kept or, token by token, all.
    """
    if num_states == 1:
        mixed, conv, ssm = _run(spec, mixed_qkv, g, beta, conv, ssm, conv_weight, conv_bias)
        return mixed, conv.unsqueeze(1), ssm.unsqueeze(1)
    num_tokens = mixed_qkv.shape[1]
    assert num_states == num_tokens, f"{num_states} states of {num_tokens} tokens"
    outs, convs, ssms = [], [], []
    for token in range(num_tokens):
        inputs = (rows[:, token : token + 1] for rows in (mixed_qkv, g, beta))
        mixed, conv, ssm = _run(spec, *inputs, conv, ssm, conv_weight, conv_bias)
        outs.append(mixed)
        convs.append(conv)
        ssms.append(ssm)
    return torch.cat(outs, dim=1), torch.stack(convs, dim=1), torch.stack(ssms, dim=1)


def _run(
    spec: RecurrentSpec,
    mixed_qkv: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    conv: torch.Tensor,
    ssm: torch.Tensor,
    conv_weight: torch.Tensor,
    conv_bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    key_dim = spec.num_k_heads * spec.head_k_dim
    x, conv = torch.ops.trunnion.causal_conv1d_silu(mixed_qkv, conv, conv_weight, conv_bias)
    q, k, v = x.split((key_dim, key_dim, spec.num_v_heads * spec.head_v_dim), dim=-1)
    mixed, ssm = torch.ops.trunnion.gated_delta_rule(
        q.unflatten(-1, (spec.num_k_heads, -1)),
        k.unflatten(-1, (spec.num_k_heads, -1)),
        v.unflatten(-1, (spec.num_v_heads, -1)),
        g,
        beta,
        ssm,
    )
    return mixed, conv, ssm


def _taken(states: torch.Tensor, batch: PlannedStates) -> torch.Tensor:
    """The batch's states, zeros for requests that start here (selected, since a stale state may hold NaN)."""
    taken = states.index_select(0, batch.start)
    return taken.masked_fill(batch.is_fresh.view(-1, *[1] * (taken.dim() - 1)), 0)
