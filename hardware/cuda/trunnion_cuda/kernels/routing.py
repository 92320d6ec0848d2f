"""Routing: the softmax or sigmoid of a token's logits, the best groups of experts, the best experts, their weights.

T tokens, k of E experts: `T (4 E + 12 k)` bytes, 4 E more with a bias for the choice. A few FLOPs for each logit and
choice, so that bytes and latency limit it. No shape depends on the routing: it may be captured.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.moe import LEAST_SUM
from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two

ARCHITECTURES = EVERY_ARCHITECTURE
MAX_EXPERTS = 1024

Routing = tuple[torch.Tensor, torch.Tensor]


@triton.jit
def _routing_kernel(
    logits, bias, weights, ids, num_tokens, num_experts, logits_row,
    BIASED: tl.constexpr, TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, LEAST_SUM: tl.constexpr,
    GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)
    is_row = row < num_tokens
    is_expert = (expert < num_experts)[None, :]
    score = tl.load(
        logits + row[:, None] * logits_row + expert[None, :], mask=is_row[:, None] & is_expert, other=float("-inf")
    )
    score = tl.where(is_expert & is_row[:, None], score.to(tl.float32), float("-inf"))
    score = tl.where(is_row[:, None], score, 0.0)
    if BIASED:
        score = 1.0 / (1.0 + tl.exp(-score))
        key = score + tl.load(bias + expert, mask=expert < num_experts, other=0.0)[None, :]
    else:
        score = tl.exp(score - tl.max(score, axis=1)[:, None])
        score = tl.where(is_expert, score, 0.0)
        score = score / tl.sum(score, axis=1)[:, None]
        key = score
    # What is chosen by. A row of NaN must still name experts that exist.
    key = tl.where(is_expert, tl.where(key == key, key, float("inf")), float("-inf"))
    if GROUPS > 1:
        group = expert // (num_experts // GROUPS)
        # Each expert carries its group's score, so that the best group is the first of the best experts'.
        of_group = tl.full([ROWS, EXPERTS], float("-inf"), tl.float32)
        for each in tl.static_range(GROUPS):
            own = tl.where((group == each)[None, :], key, float("-inf"))
            best = tl.max(own, axis=1)
            if BIASED:
                is_first = expert[None, :] == tl.argmax(own, axis=1)[:, None]
                best += tl.max(tl.where(is_first, float("-inf"), own), axis=1)
            of_group = tl.where((group == each)[None, :] & is_expert, best[:, None], of_group)
        chosen = tl.zeros([ROWS, EXPERTS], tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            taken = tl.argmax(of_group, axis=1) // (num_experts // GROUPS)
            is_taken = group[None, :] == taken[:, None]
            chosen = tl.where(is_taken, 1, chosen)
            of_group = tl.where(is_taken, float("-inf"), of_group)
        key = tl.where(chosen != 0, key, float("-inf"))
    choice = tl.arange(0, CHOICES)
    best_scores = tl.zeros([ROWS, CHOICES], tl.float32)
    best_ids = tl.zeros([ROWS, CHOICES], tl.int32)
    for each in tl.static_range(TOP_K):
        best = tl.argmax(key, axis=1)
        is_best = expert[None, :] == best[:, None]
        weight = tl.sum(tl.where(is_best, score, 0.0), axis=1)
        key = tl.where(is_best, float("-inf"), key)
        best_scores = tl.where((choice == each)[None, :], weight[:, None], best_scores)
        best_ids = tl.where((choice == each)[None, :], best[:, None].to(tl.int32), best_ids)
    if RENORMALIZE:
        best_scores = best_scores / (tl.sum(best_scores, axis=1) + LEAST_SUM)[:, None]
    at = row[:, None] * TOP_K + choice[None, :]
    mask = is_row[:, None] & (choice < TOP_K)[None, :]
    tl.store(weights + at, best_scores, mask=mask)
    tl.store(ids + at, best_ids.to(tl.int64), mask=mask)


def _why_not(logits: torch.Tensor) -> str | None:
    if logits.shape[1] > MAX_EXPERTS:
        return f"more than {MAX_EXPERTS} experts"
    return "strided logits" if logits.stride(1) != 1 else None


def _route(
    logits: torch.Tensor, bias: torch.Tensor | None, top_k: int, renormalize: bool, groups: int, top_groups: int
) -> Routing:
    num_tokens, num_experts = logits.shape
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int64, device=logits.device)
    experts = power_of_two(num_experts)
    rows = min(max(1024 // experts, 1), power_of_two(num_tokens))
    launch(
        _routing_kernel, (ceil_div(num_tokens, rows),), logits, logits if bias is None else bias, weights, ids,
        num_tokens, num_experts, logits.stride(0), BIASED=bias is not None, TOP_K=top_k, RENORMALIZE=renormalize,
        GROUPS=groups, TOP_GROUPS=top_groups, LEAST_SUM=0.0 if bias is None else LEAST_SUM, ROWS=rows, EXPERTS=experts,
        CHOICES=power_of_two(top_k),
    )  # fmt: skip
    return weights, ids


def topk_softmax(router_logits: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    """As `trunnion::topk_softmax`; of equal scores the lower expert."""
    if (reason := _why_not(router_logits)) is not None:
        return decline("topk_softmax", reason, router_logits, top_k, renormalize)
    return _route(router_logits, None, top_k, renormalize, 1, 1)


def grouped_topk(
    router_logits: torch.Tensor, top_k: int, num_expert_group: int, topk_group: int, renormalize: bool
) -> Routing:
    """As `trunnion::grouped_topk`; of equal scores the lower group and expert."""
    if (reason := _why_not(router_logits)) is not None:
        return decline("grouped_topk", reason, router_logits, top_k, num_expert_group, topk_group, renormalize)
    return _route(router_logits, None, top_k, renormalize, num_expert_group, topk_group)


def biased_grouped_topk(
    router_logits: torch.Tensor,
    correction_bias: torch.Tensor,
    top_k: int,
    num_expert_group: int,
    topk_group: int,
    renormalize: bool,
) -> Routing:
    """As `trunnion::biased_grouped_topk`; of equal scores the lower group and expert."""
    reason = _why_not(router_logits)
    if reason is None and (correction_bias.dtype != torch.float32 or not correction_bias.is_contiguous()):
        reason = "a bias that is not contiguous float32"
    if reason is not None:
        given = router_logits, correction_bias, top_k, num_expert_group, topk_group, renormalize
        return decline("biased_grouped_topk", reason, *given)
    return _route(router_logits, correction_bias, top_k, renormalize, num_expert_group, topk_group)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {
        "topk_softmax": topk_softmax,
        "grouped_topk": grouped_topk,
        "biased_grouped_topk": biased_grouped_topk,
    }
