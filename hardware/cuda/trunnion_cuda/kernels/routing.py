"""Routing: the softmax of a token's scores, the best groups of experts, and the best experts with their weights.

T tokens, k of E experts: `T (4 E + 12 k)` bytes. No shape depends on the routing: it may be captured.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two

ARCHITECTURES = EVERY_ARCHITECTURE
MAX_EXPERTS = 1024


@triton.jit
def _routing_kernel(
    logits, weights, ids, num_tokens, num_experts, logits_row,
    TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
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
    score = tl.exp(score - tl.max(score, axis=1)[:, None])
    score = tl.where(is_expert, score, 0.0)
    score = score / tl.sum(score, axis=1)[:, None]
    if GROUPS > 1:
        group = expert // (num_experts // GROUPS)
        # Each expert carries its group's score, so that the best group is the first of the best experts'.
        of_group = tl.zeros([ROWS, EXPERTS], tl.float32)
        for each in tl.static_range(GROUPS):
            best = tl.max(tl.where((group == each)[None, :] & is_expert, score, -1.0), axis=1)
            of_group = tl.where((group == each)[None, :], best[:, None], of_group)
        of_group = tl.where(is_expert, of_group, -1.0)
        chosen = tl.zeros([ROWS, EXPERTS], tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            taken = tl.argmax(of_group, axis=1) // (num_experts // GROUPS)
            is_taken = group[None, :] == taken[:, None]
            chosen = tl.where(is_taken, 1, chosen)
            of_group = tl.where(is_taken, -1.0, of_group)
        score = tl.where(chosen != 0, score, 0.0)
    # A row of NaN must still name experts that exist.
    rank = tl.where(is_expert, tl.where(score == score, score, 2.0), -1.0)
    choice = tl.arange(0, CHOICES)
    best_scores = tl.zeros([ROWS, CHOICES], tl.float32)
    best_ids = tl.zeros([ROWS, CHOICES], tl.int32)
    for each in tl.static_range(TOP_K):
        best = tl.argmax(rank, axis=1)
        is_best = expert[None, :] == best[:, None]
        weight = tl.sum(tl.where(is_best, score, 0.0), axis=1)
        rank = tl.where(is_best, -1.0, rank)
        best_scores = tl.where((choice == each)[None, :], weight[:, None], best_scores)
        best_ids = tl.where((choice == each)[None, :], best[:, None].to(tl.int32), best_ids)
    if RENORMALIZE:
        best_scores = best_scores / tl.sum(best_scores, axis=1)[:, None]
    at = row[:, None] * TOP_K + choice[None, :]
    mask = is_row[:, None] & (choice < TOP_K)[None, :]
    tl.store(weights + at, best_scores, mask=mask)
    tl.store(ids + at, best_ids.to(tl.int64), mask=mask)


def _route(
    name: str, logits: torch.Tensor, top_k: int, renormalize: bool, groups: int, top_groups: int, *args: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, num_experts = logits.shape
    if num_experts > MAX_EXPERTS or logits.stride(1) != 1:
        reason = f"more than {MAX_EXPERTS} experts" if num_experts > MAX_EXPERTS else "strided logits"
        return decline(name, reason, logits, top_k, *args, renormalize)
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int64, device=logits.device)
    experts = power_of_two(num_experts)
    rows = min(max(1024 // experts, 1), power_of_two(num_tokens))
    launch(
        _routing_kernel, (ceil_div(num_tokens, rows),), logits, weights, ids, num_tokens, num_experts, logits.stride(0),
        TOP_K=top_k, RENORMALIZE=renormalize, GROUPS=groups, TOP_GROUPS=top_groups, ROWS=rows, EXPERTS=experts,
        CHOICES=power_of_two(top_k),
    )  # fmt: skip
    return weights, ids


def topk_softmax(router_logits: torch.Tensor, top_k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::topk_softmax`; of equal scores the lower expert."""
    return _route("topk_softmax", router_logits, top_k, renormalize, 1, 1)


def grouped_topk(
    router_logits: torch.Tensor, top_k: int, num_expert_group: int, topk_group: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::grouped_topk`; of equal scores the lower group and expert."""
    groups = num_expert_group, topk_group
    return _route("grouped_topk", router_logits, top_k, renormalize, *groups, *groups)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"topk_softmax": topk_softmax, "grouped_topk": grouped_topk}
