"""Mixture of experts: routing a token to its experts, and the experts themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from trunnion.ops.registry import define

Routing = tuple[torch.Tensor, torch.Tensor]

LEAST_SUM = 1e-20
"""Added to the sum of sigmoids that weights are divided by: all of them may be 0."""


def _best(scores: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    weights, ids = torch.topk(scores, top_k, dim=-1)
    if renormalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, ids


def _fake_routing(router_logits: torch.Tensor, top_k: int) -> Routing:
    shape, device = (router_logits.shape[0], top_k), router_logits.device
    return torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int64, device=device)


def _fake_topk_softmax(router_logits: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    return _fake_routing(router_logits, top_k)


@define("topk_softmax(Tensor router_logits, int top_k, bool renormalize) -> (Tensor, Tensor)", fake=_fake_topk_softmax)
def topk_softmax(router_logits: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    """Softmax over the experts, then the best `top_k`, whose weights sum to 1 if `renormalize`.

    router_logits [T, E] -> weights [T, top_k] float32, ids [T, top_k] int64.
    """
    return _best(router_logits.softmax(-1, dtype=torch.float32), top_k, renormalize)


def _fake_grouped_topk(
    router_logits: torch.Tensor, top_k: int, num_expert_group: int, topk_group: int, renormalize: bool
) -> Routing:
    return _fake_routing(router_logits, top_k)


@define(
    "grouped_topk(Tensor router_logits, int top_k, int num_expert_group, int topk_group, bool renormalize)"
    " -> (Tensor, Tensor)",
    fake=_fake_grouped_topk,
)
def grouped_topk(
    router_logits: torch.Tensor, top_k: int, num_expert_group: int, topk_group: int, renormalize: bool
) -> Routing:
    """Device-limited routing (DeepSeek-V2, arXiv:2405.04434, 2.2.2): only experts of the `topk_group` best groups.

    A group's score is that of its best expert. Shapes as `topk_softmax`; E divides into `num_expert_group` groups.
    """
    scores = router_logits.softmax(-1, dtype=torch.float32)
    grouped = scores.unflatten(-1, (num_expert_group, -1))  # [T, G, E / G]
    best_groups = torch.topk(grouped.amax(-1), topk_group, dim=-1).indices
    chosen = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best_groups, True)
    return _best(grouped.masked_fill(~chosen.unsqueeze(-1), 0.0).flatten(-2), top_k, renormalize)


def _fake_biased_grouped_topk(
    router_logits: torch.Tensor,
    correction_bias: torch.Tensor,
    top_k: int,
    num_expert_group: int,
    topk_group: int,
    renormalize: bool,
) -> Routing:
    return _fake_routing(router_logits, top_k)


@define(
    "biased_grouped_topk(Tensor router_logits, Tensor correction_bias, int top_k, int num_expert_group, int topk_group,"
    " bool renormalize) -> (Tensor, Tensor)",
    fake=_fake_biased_grouped_topk,
)
def biased_grouped_topk(
    router_logits: torch.Tensor,
    correction_bias: torch.Tensor,
    top_k: int,
    num_expert_group: int,
    topk_group: int,
    renormalize: bool,
) -> Routing:
    """Node-limited routing without auxiliary loss (DeepSeek-V3, arXiv:2412.19437, 2.1.2).

    Scores are the logits' sigmoids. With `correction_bias` [E] float32 added they choose the `topk_group` best groups,
    of which each counts for the sum of its two best experts, and the `top_k` best experts of these; without it they are
    the weights, divided by their sum if `renormalize`. Shapes as `grouped_topk`; a group has two experts or more.
    """
    scores = router_logits.float().sigmoid()
    grouped = (scores + correction_bias).unflatten(-1, (num_expert_group, -1))  # [T, G, E / G]
    best_groups = torch.topk(torch.topk(grouped, 2, dim=-1).values.sum(-1), topk_group, dim=-1).indices
    chosen = torch.zeros_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best_groups, True)
    ids = torch.topk(grouped.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(-2), top_k, dim=-1).indices
    weights = scores.gather(-1, ids)
    return weights / (weights.sum(-1, keepdim=True) + LEAST_SUM) if renormalize else weights, ids


def clamped_swiglu(gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """`(up + 1) * gate * sigmoid(alpha * gate)`, the gate at most `limit`, `up` within `-limit ... limit` (gpt-oss)."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha))


@dataclass(frozen=True)
class _Experts:
    """Weights, biases and activation of `fused_experts`."""

    w13: torch.Tensor
    w2: torch.Tensor
    w13_bias: torch.Tensor | None
    w2_bias: torch.Tensor | None
    swiglu_alpha: float
    swiglu_limit: float | None

    def apply(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """x [R, H] -> [R, H]."""
        gate, up = F.linear(x, self.w13[expert], _of(self.w13_bias, expert)).chunk(2, dim=-1)
        if self.swiglu_limit is None:
            inner = F.silu(gate) * up
        else:
            inner = clamped_swiglu(gate, up, self.swiglu_alpha, self.swiglu_limit)
        return F.linear(inner, self.w2[expert], _of(self.w2_bias, expert))


def _of(bias: torch.Tensor | None, expert: int) -> torch.Tensor | None:
    return None if bias is None else bias[expert]


def _fake_fused_experts(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@define(
    "fused_experts(Tensor x, Tensor w13, Tensor w2, Tensor topk_weights, Tensor topk_ids, Tensor? w13_bias=None,"
    " Tensor? w2_bias=None, float swiglu_alpha=1.0, float? swiglu_limit=None) -> Tensor",
    fake=_fake_fused_experts,
)
def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    swiglu_alpha: float = 1.0,
    swiglu_limit: float | None = None,
) -> torch.Tensor:
    """Sum over a token's experts of `weight * down(silu(gate(x)) * up(x))`, added up in float32.

    x [T, H], w13 [E, 2 * I, H] (gate rows, then up rows), w2 [E, H, I], topk_weights [T, k] float32, topk_ids [T, k]
    int64, w13_bias [E, 2 * I] and w2_bias [E, H] of x's dtype -> [T, H]. With a `swiglu_limit` gate and up are joined
    by `clamped_swiglu`; without one `swiglu_alpha` says nothing.

    Fit for capture: every expert sees every token and keeps the rows it was chosen for, so no shape depends on the
    routing. `experts_by_token` does only the work needed.
    """
    experts = _Experts(w13, w2, w13_bias, w2_bias, swiglu_alpha, swiglu_limit)
    return sum_of_experts(x, topk_weights, topk_ids, w13.shape[0], lambda expert: experts.apply(expert, x))


def sum_of_experts(
    x: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    num_experts: int,
    apply: Callable[[int], torch.Tensor],
) -> torch.Tensor:
    """`fused_experts` of what `apply(expert)` makes of x: [T, H], of which only the rows sent to it are kept."""
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in range(num_experts):
        chosen = topk_ids == expert  # [T, k]
        weight = (topk_weights * chosen).sum(-1, keepdim=True)
        # Not a product with 0: a row that overflows in an expert it was not sent to must not become NaN.
        out += torch.where(chosen.any(-1, keepdim=True), apply(expert).float() * weight, 0.0)
    return out.to(x.dtype)


def experts_by_token(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    swiglu_alpha: float = 1.0,
    swiglu_limit: float | None = None,
) -> torch.Tensor:
    """`fused_experts` for a device whose shapes may depend on data: each expert computes only its own tokens.

    Experts without tokens cost nothing; a package may register it where it captures no graphs.
    """
    experts = _Experts(w13, w2, w13_bias, w2_bias, swiglu_alpha, swiglu_limit)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in topk_ids.unique().tolist():
        rows, choice = torch.where(topk_ids == expert)
        value = experts.apply(expert, x[rows]).float() * topk_weights[rows, choice, None]
        out.index_add_(0, rows, value)
    return out.to(x.dtype)
