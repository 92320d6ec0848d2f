"""Linear layers of 8 bits: rows of activations are quantised, multiplied as they are, and scaled behind the product.

For T tokens, N x K weights: `2 T N K` FLOPs, `T K b + T K` bytes to quantise rows of b bytes, then `T K + N K + T N b`.
With few tokens the weights' bandwidth is the limit, from some hundred on the tensor cores. Weights in blocks have a
scale per `rows` x `columns` of them: products of each `columns` features are scaled before they are added.

Decodes of e4m3 are multiplied in float16 on sm_90a and sm_100a, whose own instructions start at 64 rows: at half of
FP8's rate, where the weights' bandwidth is the limit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.quantised import LARGEST, TINY
from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, FLOAT8_CAPABILITY, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.norm import quantise
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
"""Weights in e4m3 need a later one than sm_80."""
MAX_SIZE = 32768
"""Longest row that stays in registers while it is quantised."""
SPACE = Space(
    "quantised_linear",
    (
        Config({"M": 16, "N": 64, "K": 128}, num_warps=4, num_stages=3),
        Config({"M": 16, "N": 32, "K": 128}, num_warps=4, num_stages=4),
        Config({"M": 64, "N": 64, "K": 128}, num_warps=4, num_stages=3),
        Config({"M": 64, "N": 128, "K": 128}, num_warps=8, num_stages=3),
    ),
)
"""K is that of weights with a scale per row; with blocks it is their number of columns."""


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
    group = tl.arange(0, NUM_GROUPS)
    if IS_STATIC:
        scale = tl.load(given_scale)
        scaled = tl.minimum(tl.maximum(loaded / scale, -Q_MAX), Q_MAX)
        if IS_INT:
            # 1.5 * 2 ** 23: adding it leaves no bits for a fraction.
            scaled = (scaled + 12582912.0) - 12582912.0
        tl.store(scales + row * num_groups + group, tl.zeros([NUM_GROUPS], tl.float32) + scale, mask=group < num_groups)
    else:
        grouped, group_scale = quantise(tl.reshape(loaded, [1, NUM_GROUPS, GROUP]), Q_MAX, TINY, IS_INT)
        scaled = tl.reshape(grouped, [BLOCK])
        tl.store(scales + row * num_groups + group, tl.reshape(group_scale, [NUM_GROUPS]), mask=group < num_groups)
    tl.store(values + row * size + column, scaled.to(values.dtype.element_ty), mask=is_there)


@triton.jit
def _linear_kernel(
    x, x_scales, weight, weight_scales, bias, out, num_rows, num_columns, depth, num_groups,
    ROWS: tl.constexpr, IS_INT: tl.constexpr, HAS_BIAS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    # ROWS: of a block of weights that has a scale of its own; 0: a scale per row of weights and per token.
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    is_row, is_column = row < num_rows, column < num_columns
    feature = tl.arange(0, K)
    to_x, to_weight = x + row[:, None] * depth, weight + column[None, :] * depth
    total = tl.zeros([M, N], tl.int32) if IS_INT else tl.zeros([M, N], tl.float32)
    for group in range(tl.cdiv(depth, K)):
        at = group * K + feature
        is_there = at < depth
        left = tl.load(to_x + at[None, :], mask=is_row[:, None] & is_there[None, :], other=0.0)
        right = tl.load(to_weight + at[:, None], mask=is_there[:, None] & is_column[None, :], other=0.0)
        if ROWS > 0:
            part = tl.dot(left, right)
            of_row = tl.load(x_scales + row * num_groups + group, mask=is_row, other=0.0)
            of_block = tl.load(weight_scales + (column // ROWS) * num_groups + group, mask=is_column, other=0.0)
            total += part * (of_row[:, None] * of_block[None, :])
        elif IS_INT:
            total = tl.dot(left, right, total, out_dtype=tl.int32)
        else:
            total = tl.dot(left, right, total)
    result = total.to(tl.float32)
    if ROWS == 0:
        of_row = tl.load(x_scales + row, mask=is_row, other=0.0)
        of_column = tl.load(weight_scales + column, mask=is_column, other=0.0)
        result = result * (of_row[:, None] * of_column[None, :])
    if HAS_BIAS:
        result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    mask = is_row[:, None] & is_column[None, :]
    tl.store(out + row[:, None] * num_columns + column[None, :], result.to(out.dtype.element_ty), mask=mask)


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


def w8a8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """As `trunnion::w8a8_linear`."""
    if (reason := _why_not(x, weight, weight_scale)) is not None:
        return decline("w8a8_linear", reason, x, weight, weight_scale, input_scale, bias)
    values, scales = quantise_rows(x.reshape(-1, x.shape[-1]), weight.dtype, scale=input_scale)
    return multiply(values, scales, weight, weight_scale, bias, x).unflatten(0, x.shape[:-1])


def block_fp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    rows: int,
    columns: int,
) -> torch.Tensor:
    """As `trunnion::block_fp8_linear`."""
    if (reason := _why_not(x, weight, weight_scale)) is not None:
        return decline("block_fp8_linear", reason, x, weight, weight_scale, bias, rows, columns)
    values, scales = quantise_rows(x.reshape(-1, x.shape[-1]), weight.dtype, columns)
    return multiply(values, scales, weight, weight_scale, bias, x, rows, columns).unflatten(0, x.shape[:-1])


def _why_not(x: torch.Tensor, weight: torch.Tensor, weight_scale: torch.Tensor) -> str | None:
    if x.shape[-1] > MAX_SIZE:
        return f"rows longer than {MAX_SIZE}"
    if weight.dtype not in LARGEST:
        return f"weights in {weight.dtype}"
    if weight.dtype == torch.float8_e4m3fn and torch.cuda.get_device_capability() < FLOAT8_CAPABILITY:
        return "float8_e4m3fn before compute capability 8.9"
    if not (weight.is_contiguous() and weight_scale.is_contiguous()) or x.stride(-1) != 1:
        return "a strided weight, or features that are not neighbours"
    return None


def multiply(
    values: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    like: torch.Tensor,
    rows: int = 0,
    columns: int = 0,
) -> torch.Tensor:
    """values [T, K] times weight [N, K], and their scales -> [T, N] of `like`'s dtype.

    Without `rows`: scales [T, 1], weight_scale [N]. With them: [T, K / columns] and [N / rows, K / columns].
    """
    num_rows, depth = values.shape
    num_columns = weight.shape[0]
    out = torch.empty((num_rows, num_columns), dtype=like.dtype, device=like.device)

    def run(config: Config) -> None:
        launch(
            _linear_kernel, (ceil_div(num_rows, config["M"]), ceil_div(num_columns, config["N"])),
            values, scales, weight, weight_scale, weight_scale if bias is None else bias, out,
            num_rows, num_columns, depth, scales.shape[1],
            ROWS=rows, IS_INT=weight.dtype == torch.int8, HAS_BIAS=bias is not None,
            M=config["M"], N=config["N"], K=columns or config["K"], **config.options,
        )  # fmt: skip

    def fits(config: Config) -> bool:
        return config["M"] == 16 or num_rows > 16

    TUNER.run(SPACE, (str(weight.dtype), num_columns, depth, rows, size_class(num_rows)), run, fits)
    return out


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"w8a8_linear": w8a8_linear, "block_fp8_linear": block_fp8_linear}
