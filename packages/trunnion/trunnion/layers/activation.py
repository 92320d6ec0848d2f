"""Gated activations as modules, over the operators of `trunnion.ops.activation`."""

from __future__ import annotations

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)


class SiluAndMul(nn.Module):
    """`silu(gate) * up`: [..., 2 * I] -> [..., I]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.trunnion.silu_and_mul(x)


class GeluTanhAndMul(nn.Module):
    """`gelu(gate) * up` with the tanh approximation: [..., 2 * I] -> [..., I]."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.trunnion.gelu_tanh_and_mul(x)
