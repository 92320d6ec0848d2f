"""Gated activations by torch_npu's operators: the first half of the features, activated, times the second half."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from trunnion.ops.registry import decline

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MAX_DIMS = 8
TANH = 1
"""Of `approximate`; 0 is the error function."""


def _why_not(x: torch.Tensor) -> str | None:
    if x.dtype not in DTYPES:
        return f"the operators activate float16, bfloat16 and float32, not {x.dtype}"
    if x.dim() > MAX_DIMS:
        return f"{x.dim()} dimensions; the operators take up to {MAX_DIMS}"
    return None


def _nothing(x: torch.Tensor) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As `trunnion::silu_and_mul`, rounded once."""
    if (reason := _why_not(x)) is not None:
        return decline("silu_and_mul", reason, x)
    return _nothing(x) if x.numel() == 0 else torch_npu.npu_swiglu(x.contiguous())


def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As `trunnion::gelu_tanh_and_mul`."""
    if (reason := _why_not(x)) is not None:
        return decline("gelu_tanh_and_mul", reason, x)
    if x.numel() == 0:
        return _nothing(x)
    return torch_npu.npu_geglu(x.contiguous(), approximate=TANH, activate_left=True)[0]


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"silu_and_mul": silu_and_mul, "gelu_tanh_and_mul": gelu_tanh_and_mul}
