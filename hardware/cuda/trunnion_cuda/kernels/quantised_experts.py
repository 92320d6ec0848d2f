"""Experts of 8 bits: what enters each of an expert's two products is quantised by rows, multiplied, and scaled.

T tokens, k experts each of E, H hidden and I intermediate features, activations of b bytes. The grouped GEMMs do
`6 T k H I` FLOPs and read `3 H I` bytes for each expert that has a token, and its scales: with few tokens an expert
the weights' bandwidth is the limit, with many (some hundred on Hopper) the tensor cores. Around them `T H (b + 1)`
bytes are moved to quantise tokens, `T k I (2 b + 1)` to write, read and quantise what lies between the products, and
`2 T k H b` for the sum.

Activations are quantised by token, or by token and block of features; there is no static scale to give. On sm_80 int8
only: Triton has no e4m3 there, and the operators decline.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.activation import gated_by_silu
from trunnion_cuda.kernels.expert_blocks import ExpertBlocks, sort_by_expert, suits, sum_of_choices
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch
from trunnion_cuda.kernels.row_quantisation import quantise_rows
from trunnion_cuda.kernels.scaled_product import add_product, product_scale, sum_dtype, why_not
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
"""Weights in e4m3 need a later one than sm_80."""
BLOCK = 128
"""Of the hidden features that share a scale, which no rank cuts."""
SPACE = Space(
    "quantised_experts",
    (
        Config({"M": 16, "N": 64, "K": 128}, num_warps=4, num_stages=3),
        Config({"M": 16, "N": 32, "K": 128}, num_warps=4, num_stages=4),
        Config({"M": 32, "N": 64, "K": 128}, num_warps=4, num_stages=3),
        Config({"M": 64, "N": 64, "K": 128}, num_warps=8, num_stages=3),
        Config({"M": 128, "N": 64, "K": 128}, num_warps=8, num_stages=3),
    ),
)
"""M: rows of one expert per block. The first product keeps two tiles of N columns, gate and up. K is that of weights
with a scale per row; with blocks it is their number of columns."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Of one product of all experts, with their scales."""

    values: torch.Tensor
    """[E, N, K] int8 or e4m3."""
    scales: torch.Tensor
    """[E, N] float32, or [E, ceil(N / rows), ceil(K / columns)]."""
    rows: int = 1
    """That share a scale."""
    columns: int | None = None
    """That share a scale, of activations too; None: all of them."""


@triton.jit
def _scaled_experts_kernel(
    x, x_scales, weight, weight_scales, out, choices, block_experts, num_choices, num_columns, depth, num_groups,
    ROWS_PER_CHOICE: tl.constexpr, GATED: tl.constexpr, ROWS: tl.constexpr, BLOCKS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out[choice] = x[choice / ROWS_PER_CHOICE] weight[expert]^T; GATED: weight has gate rows, then up rows."""
    # ROWS: of the weight that share a scale. Without BLOCKS a row of it has one, and so has one of x.
    block = tl.program_id(0)
    # An int64: all experts' weights may be more than 2 ** 31 elements.
    expert = tl.load(block_experts + block).to(tl.int64)
    if expert >= 0:
        choice = tl.load(choices + block * M + tl.arange(0, M)).to(tl.int64)
        is_choice = choice < num_choices
        row = choice // ROWS_PER_CHOICE
        column = tl.program_id(1) * N + tl.arange(0, N)
        is_column = column < num_columns
        feature = tl.arange(0, K)
        num_rows = num_columns * 2 if GATED else num_columns
        first_row, first_scale = expert * num_rows, expert * tl.cdiv(num_rows, ROWS)
        to_x, row_scales = x + row[:, None] * depth, x_scales + row * num_groups
        to_weight = weight + (first_row + column)[None, :] * depth
        column_scales = weight_scales + (first_scale + column // ROWS) * num_groups
        to_up = weight + (first_row + num_columns + column)[None, :] * depth
        up_scales = weight_scales + (first_scale + (num_columns + column) // ROWS) * num_groups
        total = tl.zeros([M, N], sum_dtype(x.dtype.element_ty))
        up_total = tl.zeros([M, N], sum_dtype(x.dtype.element_ty))
        for step in range(tl.cdiv(depth, K)):
            at = step * K + feature
            is_there = at < depth
            mask = is_there[:, None] & is_column[None, :]
            left = tl.load(to_x + at[None, :], mask=is_choice[:, None] & is_there[None, :], other=0.0)
            right = tl.load(to_weight + at[:, None], mask=mask, other=0.0)
            total = add_product(
                total, left, right, row_scales + step, column_scales + step, is_choice, is_column, BLOCKS
            )
            if GATED:
                right = tl.load(to_up + at[:, None], mask=mask, other=0.0)
                up_total = add_product(
                    up_total, left, right, row_scales + step, up_scales + step, is_choice, is_column, BLOCKS
                )
        result, up = total.to(tl.float32), up_total.to(tl.float32)
        if not BLOCKS:
            result *= product_scale(row_scales, column_scales, is_choice, is_column)
        if GATED:
            if not BLOCKS:
                up *= product_scale(row_scales, up_scales, is_choice, is_column)
            result = gated_by_silu(result, up, out.dtype.element_ty)
        to_out = out + choice[:, None] * num_columns + column[None, :]
        tl.store(to_out, result.to(out.dtype.element_ty), mask=is_choice[:, None] & is_column[None, :])


def _multiply(
    x: torch.Tensor, weights: Weights, blocks: ExpertBlocks, config: Config, rows_per_choice: int, *, gated: bool
) -> torch.Tensor:
    """x [R, K], of which choice c reads row `c // rows_per_choice`, weights [E, N or 2 N, K] -> [num_choices, N]."""
    values, scales = quantise_rows(x, weights.values.dtype, weights.columns)
    columns = weights.values.shape[1] // 2 if gated else weights.values.shape[1]
    out = torch.empty((blocks.num_choices, columns), dtype=x.dtype, device=x.device)
    launch(
        _scaled_experts_kernel, (blocks.experts.shape[0], ceil_div(columns, config["N"])),
        values, scales, weights.values, weights.scales, out, blocks.choices, blocks.experts,
        blocks.num_choices, columns, values.shape[1], scales.shape[1],
        ROWS_PER_CHOICE=rows_per_choice, GATED=gated, ROWS=weights.rows, BLOCKS=weights.columns is not None,
        M=config["M"], N=config["N"], K=weights.columns or config["K"], **config.options,
    )  # fmt: skip
    return out


def sum_of_experts(
    x: torch.Tensor, w13: Weights, w2: Weights, topk_weights: torch.Tensor, topk_ids: torch.Tensor
) -> torch.Tensor:
    """x [T, H] -> the weighted sum [T, H] of its experts; ids that name no expert here contribute nothing."""
    num_tokens, hidden = x.shape
    num_experts, _, intermediate = w2.values.shape
    top_k = topk_ids.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_tokens == 0:
        return out

    def run(config: Config) -> None:
        blocks = sort_by_expert(topk_ids, num_experts, config["M"])
        gated = _multiply(x, w13, blocks, config, top_k, gated=True)
        values = _multiply(gated, w2, blocks, config, 1, gated=False)
        sum_of_choices(values, topk_weights, topk_ids, num_experts, out)

    key = (
        str(w2.values.dtype), num_experts, hidden, intermediate, w13.rows, w2.columns or 0, top_k,
        size_class(num_tokens),
    )  # fmt: skip
    TUNER.run(SPACE, key, run, lambda config: suits(config["M"], num_tokens * top_k / num_experts))
    return out


def block_fp8_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_rows: int,
    w2_columns: int,
) -> torch.Tensor:
    """As `trunnion::block_fp8_experts`; ids that name no expert here contribute nothing."""
    first, second = Weights(w13, w13_scale, w13_rows, BLOCK), Weights(w2, w2_scale, BLOCK, w2_columns)
    if (reason := _why_not(x, first, second, topk_weights, topk_ids)) is not None:
        given = w13, w13_scale, w2, w2_scale, topk_weights, topk_ids, w13_rows, w2_columns
        return decline("block_fp8_experts", reason, x, *given)
    return sum_of_experts(x, first, second, topk_weights, topk_ids)


def w8a8_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> torch.Tensor:
    """As `trunnion::w8a8_experts`; ids that name no expert here contribute nothing."""
    first, second = Weights(w13, w13_scale), Weights(w2, w2_scale)
    if (reason := _why_not(x, first, second, topk_weights, topk_ids)) is not None:
        return decline("w8a8_experts", reason, x, w13, w13_scale, w2, w2_scale, topk_weights, topk_ids)
    return sum_of_experts(x, first, second, topk_weights, topk_ids)


def _why_not(
    x: torch.Tensor, w13: Weights, w2: Weights, topk_weights: torch.Tensor, topk_ids: torch.Tensor
) -> str | None:
    if topk_weights.dtype != torch.float32 or topk_ids.dtype != torch.int64:
        return f"routing in {topk_weights.dtype} and {topk_ids.dtype}"
    if not (topk_weights.is_contiguous() and topk_ids.is_contiguous()):
        return "strided routing"
    return why_not(x, (w13.values, w13.scales), (w2.values, w2.scales))


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"block_fp8_experts": block_fp8_experts, "w8a8_experts": w8a8_experts}
