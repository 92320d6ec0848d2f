"""Gated activations: the first half of the features through a nonlinearity, times the second half."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trunnion.ops.registry import define


def _fake_half(x: torch.Tensor) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)


@define("silu_and_mul(Tensor x) -> Tensor", fake=_fake_half)
def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """`silu(gate) * up` for x = [gate, up]: [..., 2 * I] -> [..., I] (SwiGLU, arXiv:2002.05202)."""
    gate, up = x.chunk(2, dim=-1)
    return (F.silu(gate) * up).contiguous()


@define("gelu_tanh_and_mul(Tensor x) -> Tensor", fake=_fake_half)
def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """`gelu(gate) * up` with the tanh approximation: [..., 2 * I] -> [..., I] (GeGLU, arXiv:2002.05202)."""
    gate, up = x.chunk(2, dim=-1)
    return (F.gelu(gate, approximate="tanh") * up).contiguous()
