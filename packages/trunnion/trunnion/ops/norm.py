"""Root-mean-square norms (arXiv:1910.07467), alone and fused with the residual addition before them."""

from __future__ import annotations

import torch

from trunnion.ops.registry import define


def _fake_rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@define("rms_norm(Tensor x, Tensor weight, float eps, bool unit_offset) -> Tensor", fake=_fake_rms_norm)
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool) -> torch.Tensor:
    """`x / sqrt(mean(x ** 2) + eps) * weight` over the last dimension, normalised in float32.

    x [..., size], weight [size] -> [..., size] of x's dtype. As Llama's norm does, the normalised row is rounded before
    it meets the weight; with `unit_offset` (Gemma) it is multiplied by `1 + weight` in float32 and rounded last.
    """
    rows = x.float()
    rows = rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
    if unit_offset:
        return (rows * (1.0 + weight.float())).to(x.dtype).contiguous()
    return (weight * rows.to(x.dtype)).to(x.dtype).contiguous()


def _fake_fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_rms_norm(x, weight, eps, unit_offset), torch.empty(x.shape, dtype=x.dtype, device=x.device)


@define(
    "fused_add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, bool unit_offset) -> (Tensor, Tensor)",
    fake=_fake_fused_add_rms_norm,
)
def fused_add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float, unit_offset: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual = x + residual` in their dtype, then `rms_norm(residual)` -> (normed, new residual), both new tensors.

    x and residual [..., size], of one shape and dtype.
    """
    residual = (x + residual).contiguous()
    return rms_norm(residual, weight, eps, unit_offset), residual
