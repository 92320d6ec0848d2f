"""The gated delta net's operators (arXiv:2412.06464): a short causal convolution, the recurrence, the gated norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trunnion.ops.registry import define

CHUNK_SIZE = 64
"""Tokens that one triangular solve covers."""
L2_EPS = 1e-6


def _fake_causal_conv1d_silu(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), torch.empty_like(state)


@define(
    "causal_conv1d_silu(Tensor x, Tensor state, Tensor weight, Tensor? bias) -> (Tensor, Tensor)",
    fake=_fake_causal_conv1d_silu,
)
def causal_conv1d_silu(
    x: torch.Tensor, state: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`silu(conv(x))`, channel by channel, over a token and the `kernel - 1` before it.

    x [B, S, C], state [B, C, kernel - 1] (the inputs before the first token, oldest first), weight [C, kernel],
    bias [C] -> out [B, S, C], the state after the last token. S is at least 1. Summed in float32.
    """
    num_tokens = x.shape[1]
    history = torch.cat((state.to(x.dtype), x.transpose(1, 2)), dim=-1)  # [B, C, kernel - 1 + S]
    out = torch.zeros(x.shape[0], x.shape[2], num_tokens, dtype=torch.float32, device=x.device)
    for tap, factor in enumerate(weight.float().unbind(-1)):
        out += history[..., tap : tap + num_tokens].float() * factor.unsqueeze(-1)
    if bias is not None:
        out += bias.float().unsqueeze(-1)
    return F.silu(out).transpose(1, 2).to(x.dtype).contiguous(), history[..., num_tokens:].to(state.dtype).contiguous()


def _fake_gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(v.shape, dtype=v.dtype, device=v.device), torch.empty_like(state)


@define(
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state) -> (Tensor, Tensor)",
    fake=_fake_gated_delta_rule,
)
def gated_delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Per head `S_t = exp(g_t) S_{t-1} + k_t d_t^T`, `d_t = beta_t (v_t - exp(g_t) S_{t-1}^T k_t)`; out is `S_t^T q_t`.

    q, k [B, S, Hk, Dk], v [B, S, Hv, Dv], g [B, S, Hv] (log decay, <= 0), beta [B, S, Hv], state [B, Hv, Dk, Dv] ->
    out [B, S, Hv, Dv] of v's dtype, the state after the last token. q and k are l2-normalised here and q scaled by
    `Dk ** -0.5`; k-head i serves v-heads `i * Hv / Hk ...`. Computed in float32, in chunks: with `G_t` the sum of g
    up to t within a chunk and S_0 the state before it, the corrections d solve the unit lower triangular system
    `d_t + beta_t sum_{s<t} exp(G_t - G_s) (k_t k_s) d_s = beta_t (v_t - exp(G_t) S_0^T k_t)`.
    """
    repeats = v.shape[2] // k.shape[2]
    queries, keys = (_normalized(x).repeat_interleave(repeats, dim=1) for x in (q, k))  # [B, Hv, S, Dk]
    queries = queries * q.shape[-1] ** -0.5
    values = v.transpose(1, 2).float()
    decay, rate = g.transpose(1, 2).float(), beta.transpose(1, 2).float().unsqueeze(-1)
    carried = state.float()
    outputs = []
    for first in range(0, v.shape[1], CHUNK_SIZE):
        rows = slice(first, first + CHUNK_SIZE)
        out, carried = _chunk(
            queries[:, :, rows], keys[:, :, rows], values[:, :, rows], decay[:, :, rows], rate[:, :, rows], carried
        )
        outputs.append(out)
    joined = torch.cat(outputs, dim=2) if outputs else values
    return joined.transpose(1, 2).to(v.dtype).contiguous(), carried.to(state.dtype)


def _normalized(x: torch.Tensor) -> torch.Tensor:
    """[B, S, H, D] -> [B, H, S, D] float32 of length 1."""
    x = x.transpose(1, 2).float()
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + L2_EPS)


def _chunk(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [B, H, C, Dk], v [B, H, C, Dv], g [B, H, C], beta [B, H, C, 1], state [B, H, Dk, Dv]."""
    total = g.cumsum(-1)  # [B, H, C]
    from_start = total.exp().unsqueeze(-1)
    future = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
    between = (total.unsqueeze(-1) - total.unsqueeze(-2)).masked_fill(future, float("-inf")).exp()  # [B, H, C, C]
    system = beta * between * (k @ k.transpose(-1, -2))
    wanted = beta * (v - from_start * (k @ state))
    corrections = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)  # [B, H, C, Dv]
    out = from_start * (q @ state) + (between * (q @ k.transpose(-1, -2))) @ corrections
    to_end = (total[..., -1:] - total).exp().unsqueeze(-1)
    return out, total[..., -1, None, None].exp() * state + (k * to_end).transpose(-1, -2) @ corrections


def _fake_rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@define("rms_norm_gated(Tensor x, Tensor gate, Tensor weight, float eps) -> Tensor", fake=_fake_rms_norm_gated)
def rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`rms_norm(x) * weight * silu(gate)` over the last dimension.

    x, gate [..., D], weight [D] -> [..., D] of x's dtype. Normalised in float32 and rounded before the weight, gated in
    float32, as Qwen3-Next's norm does.
    """
    rows = x.float()
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    return ((weight * rows.to(x.dtype)) * F.silu(gate.float())).to(x.dtype).contiguous()
