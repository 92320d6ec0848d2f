"""Experts of int8: tokens are quantised before they are copied, and again between the two grouped products."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from trunnion.ops.registry import decline
from trunnion_ascend.float8 import refuse_operand
from trunnion_ascend.kernels.expert_rows import in_order, product, summed, why_not_experts
from trunnion_ascend.kernels.quantised_linear import why_not_int8


def scale_dtype(dtype: torch.dtype) -> torch.dtype:
    """What the grouped products want weights' scales in, for results in `dtype`."""
    return torch.bfloat16 if dtype == torch.bfloat16 else torch.float32


def w8a8_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> torch.Tensor:
    """As `trunnion::w8a8_experts`; the weights' memory may be that of their transposes, in rows or fractal."""
    refuse_operand("w8a8_experts", w13)
    reason = why_not_int8(x.dtype, w13.dtype) or why_not_experts(w13.shape[0])
    if reason is not None:
        return decline("w8a8_experts", reason, x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids)
    if x.shape[0] == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    first_scale, second_scale = (scale.to(scale_dtype(x.dtype)) for scale in (w13_scale, w2_scale))
    values, scales = torch_npu.npu_dynamic_quant(x)
    ordered = in_order(values, topk_ids, w13.shape[0], scales)
    up = product(ordered.rows, w13, ordered.counts, scale=first_scale, row_scales=ordered.scales, dtype=x.dtype)
    values, scales = torch_npu.npu_dynamic_quant(torch_npu.npu_swiglu(up))
    down = product(values, w2, ordered.counts, scale=second_scale, row_scales=scales, dtype=x.dtype)
    return summed(down, ordered.places, topk_weights)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"w8a8_experts": w8a8_experts}
