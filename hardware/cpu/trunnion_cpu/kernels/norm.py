"""RMS norms through torch's fused operator, which keeps float32 inside and rounds once."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """As `trunnion::rms_norm`; in bfloat16 one rounding fewer than the reference."""
    if unit_offset:
        # Gemma's weights count from one; adding it in bfloat16 would lose their last bits.
        return F.rms_norm(x.float(), x.shape[-1:], 1.0 + weight.float(), eps).to(x.dtype)
    return F.rms_norm(x, x.shape[-1:], weight, eps)


def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::fused_add_rms_norm`."""
    residual = x + residual
    return rms_norm(residual, weight, eps, unit_offset), residual
