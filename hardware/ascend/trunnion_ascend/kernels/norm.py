"""RMS norms (arXiv:1910.07467) by torch_npu's operators: alone, after the residual addition, and gated.

They compute in float32 and round once, where the reference rounds the normalised row before it meets the weight.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import torch_npu

from trunnion.ops.registry import decline

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_DIMS = 8


def _why_not(x: torch.Tensor, weight: torch.Tensor, *, mixed: bool) -> str | None:
    """`mixed`: whether a weight in float32 may meet rows of another dtype."""
    if x.dtype not in DTYPES:
        return f"the operators normalise float16, bfloat16 and float32, not {x.dtype}"
    if weight.dtype != x.dtype and not (mixed and weight.dtype == torch.float32):
        return f"a weight of {weight.dtype} for rows of {x.dtype}"
    if not 2 <= x.dim() <= MAX_DIMS:
        return f"rows in {x.dim()} dimensions; the operators take 2 to {MAX_DIMS}"
    return None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """As `trunnion::rms_norm`."""
    if (reason := _why_not(x, weight, mixed=not unit_offset)) is not None:
        return decline("rms_norm", reason, x, weight, eps, unit_offset)
    return _normed(x, weight, eps, unit_offset)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    if x.numel() == 0:
        return torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if unit_offset:
        return torch_npu.npu_gemma_rms_norm(x, weight, eps)[0]
    return torch_npu.npu_rms_norm(x, weight, eps)[0]


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::fused_add_rms_norm`; with `unit_offset`, for which there is no fused operator, in two."""
    reason = _why_not(x, weight, mixed=False)
    if x.dtype != residual.dtype or x.shape != residual.shape:
        reason = "a residual of another dtype or shape"
    if reason is not None:
        return decline("fused_add_rms_norm", reason, x, residual, weight, eps, unit_offset)
    if unit_offset or x.numel() == 0:
        total = (x + residual).contiguous()
        return _normed(total, weight, eps, unit_offset), total
    normed, _, total = torch_npu.npu_add_rms_norm(x, residual, weight, eps)
    return normed, total


def rms_norm_gated(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As `trunnion::rms_norm_gated`: the norm is an operator, the gate torch's arithmetic."""
    if (reason := _why_not(x, weight, mixed=False)) is not None:
        return decline("rms_norm_gated", reason, x, gate, weight, eps)
    return (_normed(x, weight, eps, False) * F.silu(gate.float())).to(x.dtype).contiguous()


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"rms_norm": rms_norm, "fused_add_rms_norm": fused_add_rms_norm, "rms_norm_gated": rms_norm_gated}
