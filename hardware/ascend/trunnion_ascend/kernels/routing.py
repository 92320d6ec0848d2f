"""Routing by torch_npu's gating operators: the softmax of a token's scores, the best groups, the best experts.

No shape depends on the routing: it may be captured.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from trunnion.ops.registry import decline

MAX_TOP_K = 1024
MAX_EXPERTS = 2048
"""Of the operator that knows groups, in which each group counts as a multiple of `GROUP_MULTIPLE`."""
GROUP_MULTIPLE = 32
LEAST_GROUP = 3
BY_BEST_EXPERT = 0
SOFTMAX = 0

Routing = tuple[torch.Tensor, torch.Tensor]


def _nothing(logits: torch.Tensor, top_k: int) -> Routing:
    shape, device = (logits.shape[0], top_k), logits.device
    return torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int64, device=device)


def _finished(weights: torch.Tensor, ids: torch.Tensor, renormalize: bool) -> Routing:
    return (weights / weights.sum(-1, keepdim=True) if renormalize else weights), ids.long()


def topk_softmax(router_logits: torch.Tensor, top_k: int, renormalize: bool) -> Routing:
    """As `trunnion::topk_softmax`."""
    if top_k > MAX_TOP_K:
        return decline("topk_softmax", f"more than {MAX_TOP_K} experts of a token", router_logits, top_k, renormalize)
    if router_logits.shape[0] == 0:
        return _nothing(router_logits, top_k)
    # The weights come in the dtype of the logits.
    weights, ids, _ = torch_npu.npu_moe_gating_top_k_softmax(router_logits.float(), None, top_k)
    return _finished(weights, ids, renormalize)


def grouped_topk(
    router_logits: torch.Tensor, top_k: int, num_expert_group: int, topk_group: int, renormalize: bool
) -> Routing:
    """As `trunnion::grouped_topk`."""
    if (reason := _why_not_groups(router_logits.shape[1], num_expert_group)) is not None:
        return decline("grouped_topk", reason, router_logits, top_k, num_expert_group, topk_group, renormalize)
    if router_logits.shape[0] == 0:
        return _nothing(router_logits, top_k)
    weights, ids, _ = torch_npu.npu_moe_gating_top_k(
        router_logits.float(),
        top_k,
        k_group=topk_group,
        group_count=num_expert_group,
        group_select_mode=BY_BEST_EXPERT,
        norm_type=SOFTMAX,
    )
    return _finished(weights, ids, renormalize)


def _why_not_groups(num_experts: int, num_groups: int) -> str | None:
    size = num_experts // num_groups
    if size < LEAST_GROUP:
        return f"groups of {size} experts; the operator takes {LEAST_GROUP} or more"
    if -(-size // GROUP_MULTIPLE) * GROUP_MULTIPLE * num_groups > MAX_EXPERTS:
        return f"{num_experts} experts in {num_groups} groups, which fill more than {MAX_EXPERTS} places"
    return None


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"topk_softmax": topk_softmax, "grouped_topk": grouped_topk}
