"""The inner part of 8-bit products: one step of a tile's sum, the scales of its rows and columns, what it can take.

Without blocks the whole sum is multiplied by its scales, int8's exact in int32. With blocks, weights have a scale per
`rows` x `columns` of them and activations one per row and `columns` features: a step is one block of features, scaled
before it is added. Sums of e4m3 are float32's: Hopper's own instructions keep fewer bits, and start anew in each step.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunnion.ops.quantised import LARGEST
from trunnion_cuda.kernels.launch import FLOAT8_CAPABILITY
from trunnion_cuda.kernels.row_quantisation import MAX_SIZE


@triton.constexpr_function
def sum_dtype(dtype):
    """What products of two values of `dtype` are summed in."""
    return tl.int32 if dtype == tl.int8 else tl.float32


@triton.jit
def product_scale(row_scales, column_scales, is_row, is_column):
    """Pointers to the scales of M rows and N columns -> their products [M, N]; 0 where there is no row or column."""
    of_row = tl.load(row_scales, mask=is_row, other=0.0)
    of_column = tl.load(column_scales, mask=is_column, other=0.0)
    return of_row[:, None] * of_column[None, :]


@triton.jit
def add_product(total, left, right, row_scales, column_scales, is_row, is_column, BLOCKS: tl.constexpr):
    """total [M, N] + left [M, K] right [K, N]; with BLOCKS times the scales at the pointers [M] and [N]."""
    if total.dtype == tl.int32:
        total = tl.dot(left, right, total, out_dtype=tl.int32)
    elif BLOCKS:
        total += tl.dot(left, right) * product_scale(row_scales, column_scales, is_row, is_column)
    else:
        total += tl.dot(left, right)
    return total


def why_not(x: torch.Tensor, *weights: tuple[torch.Tensor, torch.Tensor]) -> str | None:
    """Why x [..., K] cannot be multiplied by weights [..., K], each with its scales, or None."""
    if x.stride(-1) != 1:
        return "features that are not neighbours"
    for weight, scale in weights:
        if weight.shape[-1] > MAX_SIZE:
            return f"rows longer than {MAX_SIZE}"
        if weight.dtype not in LARGEST:
            return f"weights in {weight.dtype}"
        if weight.dtype == torch.float8_e4m3fn and torch.cuda.get_device_capability() < FLOAT8_CAPABILITY:
            return "float8_e4m3fn before compute capability 8.9"
        if not (weight.is_contiguous() and scale.is_contiguous()):
            return "strided weights"
    return None
