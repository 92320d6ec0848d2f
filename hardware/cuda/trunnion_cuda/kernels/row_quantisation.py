"""Rows in 8 bits: symmetric values and their scales, per row, per group of a row's features, or with one given scale.

T rows of K elements of b bytes in groups of g: `T K (b + 1) + 4 T K / g` bytes, about 5 FLOPs per element: memory
bandwidth is the limit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunnion.ops.quantised import LARGEST, TINY
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two

ARCHITECTURES = EVERY_ARCHITECTURE
"""Values in e4m3 need a later one than sm_80."""
MAX_SIZE = 32768
"""Longest row that stays in registers while it is quantised."""


@triton.jit
def rounded(scaled, Q_MAX: tl.constexpr, IS_INT: tl.constexpr):
    """Within Q_MAX, and whole if IS_INT, ties to even; NaN stays NaN."""
    scaled = tl.clamp(scaled, -Q_MAX, Q_MAX, propagate_nan=tl.PropagateNan.ALL)
    if IS_INT:
        # 1.5 * 2 ** 23: adding it leaves no bits for a fraction.
        scaled = (scaled + 12582912.0) - 12582912.0
    return scaled


@triton.jit
def quantise(rows, Q_MAX: tl.constexpr, TINY: tl.constexpr, IS_INT: tl.constexpr):
    """rows [R, G, N] float32 -> (values as `rounded`, [R, G] scales); the scale of what is not finite is NaN."""
    # A maximum on a device passes NaN over.
    largest = tl.max(tl.where(rows == rows, tl.abs(rows), float("inf")), axis=2)
    scale = tl.where(largest < float("inf"), tl.maximum(largest / Q_MAX, TINY), float("nan"))
    return rounded(rows / tl.expand_dims(scale, 2), Q_MAX, IS_INT), scale


@triton.jit
def _quantise_rows_kernel(
    x, given_scale, values, scales, size, x_row, num_groups,
    Q_MAX: tl.constexpr, TINY: tl.constexpr, IS_INT: tl.constexpr, IS_STATIC: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_there = column < size
    loaded = tl.load(x + row * x_row + column, mask=is_there, other=0.0).to(tl.float32)
    NUM_GROUPS: tl.constexpr = BLOCK // GROUP
    grouped = tl.reshape(loaded, [1, NUM_GROUPS, GROUP])
    if IS_STATIC:
        scale = tl.zeros([1, NUM_GROUPS], tl.float32) + tl.load(given_scale)
        grouped = rounded(grouped / tl.expand_dims(scale, 2), Q_MAX, IS_INT)
    else:
        grouped, scale = quantise(grouped, Q_MAX, TINY, IS_INT)
    group = tl.arange(0, NUM_GROUPS)
    tl.store(scales + row * num_groups + group, tl.reshape(scale, [NUM_GROUPS]), mask=group < num_groups)
    tl.store(values + row * size + column, tl.reshape(grouped, [BLOCK]).to(values.dtype.element_ty), mask=is_there)


def quantise_rows(
    x: torch.Tensor, dtype: torch.dtype, group: int | None = None, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion.ops.quantised.quantise` of x [T, K], K at most `MAX_SIZE`; `group` is a power of two."""
    num_rows, size = x.shape
    block = power_of_two(max(size, group or 1))
    num_groups = ceil_div(size, group) if group else 1
    values = torch.empty((num_rows, size), dtype=dtype, device=x.device)
    scales = torch.empty((num_rows, num_groups), dtype=torch.float32, device=x.device)
    launch(
        _quantise_rows_kernel, (num_rows,),
        x, scales if scale is None else scale, values, scales, size, x.stride(0), num_groups,
        Q_MAX=LARGEST[dtype], TINY=TINY, IS_INT=dtype == torch.int8, IS_STATIC=scale is not None,
        GROUP=group or block, BLOCK=block, num_warps=4 if block <= 4096 else 8,
    )  # fmt: skip
    return values, scales
