"""Activations as modules: gated ones over the operators of `trunnion.ops.activation`, and the exact GELU."""

from __future__ import annotations

import math

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


class Gelu(nn.Module):
    """`x` times the share of a normal distribution that is below it (arXiv:1606.08415), in float32, rounded once.

    Written out: `torch.nn.functional.gelu` is the form with tanh on some devices, whichever form it is asked for.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (0.5 * wide * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)
