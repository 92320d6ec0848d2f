"""Experts in the model's dtype: grouped products over copies of tokens, in the order of their experts."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from trunnion.ops.registry import decline
from trunnion_ascend.kernels.expert_rows import in_order, product, summed, why_not_experts

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


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
    """As `trunnion::fused_experts`."""
    more = w13_bias, w2_bias, swiglu_alpha, swiglu_limit
    reason = why_not_experts(w13.shape[0])
    if w13_bias is not None or w2_bias is not None or swiglu_limit is not None:
        reason = "biases of experts, or a clamped activation"
    if x.dtype not in DTYPES or not x.dtype == w13.dtype == w2.dtype:
        reason = f"tokens of {x.dtype} with experts of {w13.dtype}"
    if reason is not None:
        return decline("fused_experts", reason, x, w13, w2, topk_weights, topk_ids, *more)
    if x.shape[0] == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    ordered = in_order(x, topk_ids, w13.shape[0])
    inner = torch_npu.npu_swiglu(product(ordered.rows, w13, ordered.counts))
    return summed(product(inner, w2, ordered.counts), ordered.places, topk_weights)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"fused_experts": fused_experts}
