"""Norm layers: weights and settings around the operators of `trunnion.ops.norm`, and around torch's layer norm."""

from __future__ import annotations

from typing import overload

import torch
import torch.nn.functional as F
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.config import BuildContext


class RMSNorm(nn.Module):
    """`norm(x)`, or `norm(x, residual) -> (normed, x + residual)`; x [..., size], the weight on every rank."""

    def __init__(self, size: int, eps: float, *, unit_offset: bool = False, ctx: BuildContext) -> None:
        super().__init__()
        self.eps = eps
        self.unit_offset = unit_offset
        self.weight = nn.Parameter(torch.empty(size, dtype=ctx.dtype), requires_grad=False)

    @overload
    def forward(self, x: torch.Tensor) -> torch.Tensor: ...

    @overload
    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return torch.ops.trunnion.rms_norm(x, self.weight, self.eps, self.unit_offset)
        return torch.ops.trunnion.fused_add_rms_norm(x, residual, self.weight, self.eps, self.unit_offset)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, unit_offset={self.unit_offset}"


class LayerNorm(nn.Module):
    """Layer norm (arXiv:1607.06450), with a bias unless told otherwise; x [..., size], all of it on every rank."""

    bias: nn.Parameter | None

    def __init__(self, size: int, eps: float, *, bias: bool = True, ctx: BuildContext) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=ctx.dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(size, dtype=ctx.dtype), requires_grad=False) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}, bias={self.bias is not None}"
