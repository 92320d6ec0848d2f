"""Linear layers of 8 bits: rows of activations are quantised, multiplied as they are, and scaled behind the product.

For T tokens, N x K weights: `2 T N K` FLOPs, `T K b + T K` bytes to quantise rows of b bytes, then `T K + N K + T N b`.
With few tokens the weights' bandwidth is the limit, from some hundred on the tensor cores. Weights in blocks have a
scale per `rows` x `columns` of them: products of each `columns` features are scaled before they are added.

Decodes of e4m3 are multiplied in float16 on sm_90a and sm_100a, whose own instructions start at 64 rows: at half of
FP8's rate, where the weights' bandwidth is the limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.block_fp8_gemm import CONFIGS, GROUP, tile_gemms
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch
from trunnion_cuda.kernels.row_quantisation import quantise_rows
from trunnion_cuda.kernels.scaled_product import add_product, product_scale, sum_dtype, why_not
from trunnion_cuda.kernels.tile_kernels import TILELANG, TRITON
from trunnion_cuda.kernels.tuning import TUNER, Config, Key, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
"""Weights in e4m3 need a later one than sm_80."""
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
EITHER = Space("block_fp8_linear", (*SPACE.configs, *CONFIGS))
"""Of products that TileLang's `block_fp8_gemm` makes too: blocks of 128 x 128 into bfloat16, no bias. Triton's stand
first: they run until `warm_up` has timed TileLang's to be faster on the device."""


@triton.jit
def _linear_kernel(
    x, x_scales, weight, weight_scales, bias, out, num_rows, num_columns, depth, num_groups,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, HAS_BIAS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    # ROWS: of the weight that share a scale. Without BLOCKS a row of it has one, and so has one of x.
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    is_row, is_column = row < num_rows, column < num_columns
    feature = tl.arange(0, K)
    to_x, to_weight = x + row[:, None] * depth, weight + column[None, :] * depth
    row_scales, column_scales = x_scales + row * num_groups, weight_scales + column // ROWS * num_groups
    total = tl.zeros([M, N], sum_dtype(x.dtype.element_ty))
    for step in range(tl.cdiv(depth, K)):
        at = step * K + feature
        is_there = at < depth
        left = tl.load(to_x + at[None, :], mask=is_row[:, None] & is_there[None, :], other=0.0)
        right = tl.load(to_weight + at[:, None], mask=is_there[:, None] & is_column[None, :], other=0.0)
        total = add_product(total, left, right, row_scales + step, column_scales + step, is_row, is_column, BLOCKS)
    result = total.to(tl.float32)
    if not BLOCKS:
        result *= product_scale(row_scales, column_scales, is_row, is_column)
    if HAS_BIAS:
        result += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    mask = is_row[:, None] & is_column[None, :]
    tl.store(out + row[:, None] * num_columns + column[None, :], result.to(out.dtype.element_ty), mask=mask)


def w8a8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """As `trunnion::w8a8_linear`."""
    if (reason := why_not(x, (weight, weight_scale))) is not None:
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
    if (reason := why_not(x, (weight, weight_scale))) is not None:
        return decline("block_fp8_linear", reason, x, weight, weight_scale, bias, rows, columns)
    values, scales = quantise_rows(x.reshape(-1, x.shape[-1]), weight.dtype, columns)
    return multiply(values, scales, weight, weight_scale, bias, x, rows, columns).unflatten(0, x.shape[:-1])


def multiply(
    values: torch.Tensor,
    scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    like: torch.Tensor,
    rows: int = 1,
    columns: int | None = None,
) -> torch.Tensor:
    """values [T, K] times weight [N, K], and their scales -> [T, N] of `like`'s dtype.

    Without `columns`: scales [T, 1], weight_scale [N]. With them: [T, K / columns] and [N / rows, K / columns].
    """
    num_rows, depth = values.shape
    num_columns = weight.shape[0]
    out = torch.empty((num_rows, num_columns), dtype=like.dtype, device=like.device)

    def run(config: Config) -> None:
        launch(
            _linear_kernel, (ceil_div(num_rows, config["M"]), ceil_div(num_columns, config["N"])),
            values, scales, weight, weight_scale, weight_scale if bias is None else bias, out,
            num_rows, num_columns, depth, scales.shape[1],
            ROWS=rows, BLOCKS=columns is not None, HAS_BIAS=bias is not None,
            M=config["M"], N=config["N"], K=columns or config["K"], **config.options,
        )  # fmt: skip

    def fits(config: Config) -> bool:
        return config["M"] == 16 or num_rows > 16

    key = str(weight.dtype), num_columns, depth, rows, columns or 0, size_class(num_rows)
    if (rows, columns) == (GROUP, GROUP) and bias is None and out.dtype == torch.bfloat16:
        _run_either(key, run, fits, values, scales, weight, weight_scale, out)
    else:
        TUNER.run(SPACE, key, run, fits)
    return out


def _run_either(
    key: Key, run: Callable[[Config], None], fits: Callable[[Config], bool], *operands: torch.Tensor
) -> None:
    """By Triton, which `run` launches, or by TileLang: whichever was timed to be faster for the kind of call."""
    tiles, (values, _, weight, *_) = tile_gemms(), operands
    num_columns, depth = weight.shape

    def run_either(config: Config) -> None:
        is_tile = config in CONFIGS
        if is_tile:
            tiles.run(config, *operands, other=lambda: run(next(filter(fits, SPACE.configs))))
        else:
            run(config)
        tiles.note((num_columns, depth, size_class(values.shape[0])), TILELANG if is_tile else TRITON)

    def either_fits(config: Config) -> bool:
        if config in CONFIGS:
            return tiles.fits(config, values, num_columns, may_compile=TUNER.is_tuning)
        return fits(config)

    TUNER.run(EITHER, key, run_either, either_fits)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"w8a8_linear": w8a8_linear, "block_fp8_linear": block_fp8_linear}
