"""Routing by torch_npu's gating operators: the softmax or sigmoid of a token's logits, the best groups and experts.

No shape depends on the routing: it may be captured.
"""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from trunnion.ops.moe import LEAST_SUM
from trunnion.ops.registry import decline

MAX_TOP_K = 1024
MAX_EXPERTS = 2048
"""Of the operator that knows groups, in which each group counts as a multiple of `GROUP_MULTIPLE`."""
GROUP_MULTIPLE = 32
LEAST_GROUP = 3
BY_BEST_EXPERT, BY_TWO_BEST = 0, 1
SOFTMAX, SIGMOID = 0, 1

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


def biased_grouped_topk(
    router_logits: torch.Tensor,
    correction_bias: torch.Tensor,
    top_k: int,
    num_expert_group: int,
    topk_group: int,
    renormalize: bool,
) -> Routing:
    """As `trunnion::biased_grouped_topk`."""
    if (reason := _why_not_groups(router_logits.shape[1], num_expert_group)) is not None:
        given = router_logits, correction_bias, top_k, num_expert_group, topk_group, renormalize
        return decline("biased_grouped_topk", reason, *given)
    if router_logits.shape[0] == 0:
        return _nothing(router_logits, top_k)
    weights, ids, scores = torch_npu.npu_moe_gating_top_k(
        router_logits.float(),
        top_k,
        # In the dtype of the logits.
        bias=correction_bias.float(),
        k_group=topk_group,
        group_count=num_expert_group,
        group_select_mode=BY_TWO_BEST,
        norm_type=SIGMOID,
        out_flag=not renormalize,
        eps=LEAST_SUM,
    )
    # With sigmoids the operator always divides by their sum.
    return (weights if renormalize else scores.gather(-1, ids.long())), ids.long()


def _why_not_groups(num_experts: int, num_groups: int) -> str | None:
    size = num_experts // num_groups
    if size < LEAST_GROUP:
        return f"groups of {size} experts; the operator takes {LEAST_GROUP} or more"
    if -(-size // GROUP_MULTIPLE) * GROUP_MULTIPLE * num_groups > MAX_EXPERTS:
        return f"{num_experts} experts in {num_groups} groups, which fill more than {MAX_EXPERTS} places"
    return None


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {
        "topk_softmax": topk_softmax,
        "grouped_topk": grouped_topk,
        "biased_grouped_topk": biased_grouped_topk,
    }
