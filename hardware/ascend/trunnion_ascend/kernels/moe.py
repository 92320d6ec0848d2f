"""Experts in the model's dtype: grouped products over copies of tokens, in the order of their experts."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from trunnion.ops.registry import decline
from trunnion_ascend.kernels.expert_rows import in_order, product, summed, why_not_experts

OFFSET = 1.0
"""What `clamped_swiglu` adds to the ups; the operator calls it a bias."""
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
    weights = [weight for weight in (w13, w2, w13_bias, w2_bias) if weight is not None]
    if x.dtype not in DTYPES or any(weight.dtype != x.dtype for weight in weights):
        listed = ", ".join(str(weight.dtype) for weight in weights)
        reason = f"tokens of {x.dtype} with experts of {listed}"
    if reason is not None:
        return decline("fused_experts", reason, x, w13, w2, topk_weights, topk_ids, *more)
    if x.shape[0] == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    ordered = in_order(x, topk_ids, w13.shape[0])
    inner = _joined(product(ordered.rows, w13, ordered.counts, bias=w13_bias), swiglu_alpha, swiglu_limit)
    return summed(product(inner, w2, ordered.counts, bias=w2_bias), ordered.places, topk_weights)


def _joined(gate_up: torch.Tensor, alpha: float, limit: float | None) -> torch.Tensor:
    """[R, 2 I], gates before ups -> [R, I]; rounded once."""
    if limit is None:
        return torch_npu.npu_swiglu(gate_up)
    return torch_npu.npu_clipped_swiglu(gate_up, alpha=alpha, limit=limit, bias=OFFSET, interleaved=False)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"fused_experts": fused_experts}
