"""Gated activations: the first half of the features through a nonlinearity, times the second half.

T rows of 2 I elements of b bytes: `3 T I b` bytes, about 10 FLOPs per element of the result. Memory bandwidth is the
limit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
SPACE = Space(
    "gated_activation",
    (Config({"BLOCK": 1024}), Config({"BLOCK": 2048}, num_warps=8), Config({"BLOCK": 512}), Config({"BLOCK": 4096}, 8)),
)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def gated_by_silu(gate, up, dtype: tl.constexpr):
    """`silu(gate) * up` in float32 of what is rounded to `dtype` after each step, as the reference does."""
    opened = silu(gate.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    return opened * up.to(dtype).to(tl.float32)


@triton.jit
def gated_by_clamped_swiglu(gate, up, alpha, limit, dtype: tl.constexpr):
    """`(up + 1) * gate * sigmoid(alpha * gate)` of clamped values, rounded to `dtype` as above."""
    gate = tl.minimum(gate.to(dtype).to(tl.float32), limit, propagate_nan=tl.PropagateNan.ALL).to(dtype).to(tl.float32)
    up = tl.clamp(up.to(dtype).to(tl.float32), -limit, limit, propagate_nan=tl.PropagateNan.ALL)
    up = (up.to(dtype).to(tl.float32) + 1.0).to(dtype).to(tl.float32)
    share = tl.sigmoid((gate * alpha).to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
    return up * (gate * share).to(dtype).to(tl.float32)


@triton.jit
def gelu_tanh(x):
    """`x / 2 (1 + tanh(u))` is `x sigmoid(2 u)`."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def _gated_kernel(x, out, size, x_row, GELU: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    dtype = x.dtype.element_ty
    gate = tl.load(x + row * x_row + column, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_row + size + column, mask=mask, other=0.0).to(tl.float32)
    # The reference rounds the nonlinearity before the product, as the models it follows do.
    opened = (gelu_tanh(gate) if GELU else silu(gate)).to(dtype).to(tl.float32)
    tl.store(out + row * size + column, (opened * up).to(dtype), mask=mask)


def _gated(name: str, x: torch.Tensor) -> torch.Tensor:
    size = x.shape[-1] // 2
    if x.dim() != 2 and not x.is_contiguous():
        return decline(name, "a strided input of more than two dimensions", x)
    if x.stride(-1) != 1:
        return decline(name, "features that are not neighbours in memory", x)
    out = torch.empty((*x.shape[:-1], size), dtype=x.dtype, device=x.device)
    num_rows = out.numel() // size if size else 0
    x_row = x.stride(0) if x.dim() == 2 else 2 * size

    def run(config: Config) -> None:
        block = min(config["BLOCK"], power_of_two(size))
        grid = num_rows, ceil_div(size, block)
        launch(_gated_kernel, grid, x, out, size, x_row, GELU=name != "silu_and_mul", BLOCK=block, **config.options)

    if num_rows:
        TUNER.run(SPACE, (str(x.dtype), size, size_class(num_rows)), run)
    return out


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As `trunnion::silu_and_mul`."""
    return _gated("silu_and_mul", x)


def gelu_tanh_and_mul(x: torch.Tensor) -> torch.Tensor:
    """As `trunnion::gelu_tanh_and_mul`."""
    return _gated("gelu_tanh_and_mul", x)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"silu_and_mul": silu_and_mul, "gelu_tanh_and_mul": gelu_tanh_and_mul}
