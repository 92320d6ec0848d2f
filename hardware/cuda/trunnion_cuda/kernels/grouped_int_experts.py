"""Experts with weights alone of 4 or 8 bits: a grouped GEMM that makes them dense in registers, twice, and the sum.

T tokens, k experts each of E, H hidden and I intermediate features, c bits in groups of g, values of b bytes. The GEMMs
do `6 T k H I` FLOPs and read `3 H I (c / 8 + (b + 1) / g)` bytes for each expert that has a token: with few tokens an
expert the weights' bandwidth is the limit, with many the tensor cores.
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
from trunnion_cuda.kernels.grouped_int_linear import dense_tile, largest_step, why_not
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
SPACE = Space(
    "grouped_int_experts",
    (
        Config({"M": 16, "N": 64, "K": 64}, num_warps=4, num_stages=3),
        Config({"M": 16, "N": 32, "K": 128}, num_warps=4, num_stages=3),
        Config({"M": 32, "N": 64, "K": 64}, num_warps=4, num_stages=3),
        Config({"M": 64, "N": 64, "K": 64}, num_warps=8, num_stages=3),
    ),
)
"""M: rows of one expert per block. The first GEMM keeps two tiles of N columns: gate and up."""


@dataclass(frozen=True, slots=True)
class Weights:
    """Of all experts: packed [E, N, K * bits / 8], scales and zero points [E, N, G]."""

    packed: torch.Tensor
    scales: torch.Tensor
    zero_points: torch.Tensor | None
    bits: int
    group_size: int

    @property
    def depth(self) -> int:
        """Features of a row."""
        return self.packed.shape[2] * 8 // self.bits


@triton.jit
def _load_dense(
    weight, scales, zeros, row, is_row, first, depth, num_groups, group_size, dtype: tl.constexpr,
    BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Rows `row` [N] int64 of all experts' weights, K features from `first` on -> [K, N]."""
    PER_BYTE: tl.constexpr = 8 // BITS
    num_bytes = depth // PER_BYTE
    byte = first // PER_BYTE + tl.arange(0, K // PER_BYTE)
    mask = is_row[:, None] & (byte < num_bytes)[None, :]
    packed = tl.load(weight + row[:, None] * num_bytes + byte[None, :], mask=mask, other=0)
    group = row * num_groups + first // group_size
    scale = tl.load(scales + group, mask=is_row, other=0.0)
    zero = tl.full([N], 1 << (BITS - 1), tl.uint8)
    if HAS_ZEROS:
        zero = tl.load(zeros + group, mask=is_row, other=0)
    return dense_tile(packed, scale, zero, dtype, BITS, N, K)


@triton.jit
def _grouped_int_experts_kernel(
    x, weight, scales, zeros, out, choices, block_experts, num_choices, num_columns, depth, x_row, num_groups,
    group_size, ROWS_PER_CHOICE: tl.constexpr, GATED: tl.constexpr, BITS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out[choice] = x[choice / ROWS_PER_CHOICE] weight[expert]^T; GATED: weight has gate rows, then up rows."""
    block = tl.program_id(0)
    expert = tl.load(block_experts + block).to(tl.int64)
    if expert >= 0:
        choice = tl.load(choices + block * M + tl.arange(0, M))
        is_choice = choice < num_choices
        column = tl.program_id(1) * N + tl.arange(0, N)
        inner = tl.arange(0, K)
        is_column = column < num_columns
        x_at = x + (choice // ROWS_PER_CHOICE).to(tl.int64)[:, None] * x_row + inner[None, :]
        rows = num_columns * 2 if GATED else num_columns
        # `expert` is an int64: all experts' weights may be more than 2 ** 31 elements.
        row = expert * rows + column
        dtype = x.dtype.element_ty
        total = tl.zeros([M, N], tl.float32)
        up_total = tl.zeros([M, N], tl.float32)
        for first in range(0, depth, K):
            mask = is_choice[:, None] & (first + inner < depth)[None, :]
            a = tl.load(x_at + first, mask=mask, other=0.0)
            b = _load_dense(
                weight,
                scales,
                zeros,
                row,
                is_column,
                first,
                depth,
                num_groups,
                group_size,
                dtype,
                BITS,
                HAS_ZEROS,
                N,
                K,
            )
            total = tl.dot(a, b, total, input_precision=PRECISION)
            if GATED:
                b = _load_dense(
                    weight, scales, zeros, row + num_columns, is_column, first, depth, num_groups, group_size, dtype,
                    BITS, HAS_ZEROS, N, K,
                )  # fmt: skip
                up_total = tl.dot(a, b, up_total, input_precision=PRECISION)
        if GATED:
            total = gated_by_silu(total, up_total, out.dtype.element_ty)
        at = out + choice.to(tl.int64)[:, None] * num_columns + column[None, :]
        tl.store(at, total.to(out.dtype.element_ty), mask=is_choice[:, None] & is_column[None, :])


def _multiply(
    x: torch.Tensor, weights: Weights, blocks: ExpertBlocks, config: Config, rows_per_choice: int, *, gated: bool
) -> torch.Tensor:
    """x [R, K], of which choice c reads row `c // rows_per_choice` -> [num_choices, N or N / 2]."""
    _, rows, num_groups = weights.scales.shape
    columns = rows // 2 if gated else rows
    out = torch.empty((blocks.num_choices, columns), dtype=x.dtype, device=x.device)
    is_wide = x.dtype == torch.float32
    # Three products in tf32 for one in float32 keep as many operands in registers.
    step = min(32 if is_wide else config["K"], largest_step(weights.group_size) if num_groups > 1 else config["K"])
    launch(
        _grouped_int_experts_kernel, (blocks.experts.shape[0], ceil_div(columns, config["N"])),
        x, weights.packed, weights.scales, weights.packed if weights.zero_points is None else weights.zero_points, out,
        blocks.choices, blocks.experts, blocks.num_choices, columns, weights.depth, x.stride(0), num_groups,
        weights.group_size, ROWS_PER_CHOICE=rows_per_choice, GATED=gated, BITS=weights.bits,
        HAS_ZEROS=weights.zero_points is not None, PRECISION="tf32x3" if is_wide else "tf32",
        M=config["M"], N=config["N"], K=step, **config.options,
    )  # fmt: skip
    return out


def grouped_int_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scales: torch.Tensor,
    w13_zero_points: torch.Tensor | None,
    w2: torch.Tensor,
    w2_scales: torch.Tensor,
    w2_zero_points: torch.Tensor | None,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    bits: int,
    w13_group_size: int,
    w2_group_size: int,
) -> torch.Tensor:
    """As `trunnion::grouped_int_experts`; ids that name no expert here contribute nothing."""
    first = Weights(w13, w13_scales, w13_zero_points, bits, w13_group_size)
    second = Weights(w2, w2_scales, w2_zero_points, bits, w2_group_size)
    reason = why_not(x, w13, w13_scales, w13_zero_points) or why_not(x, w2, w2_scales, w2_zero_points)
    if reason is None and not (topk_weights.is_contiguous() and topk_ids.is_contiguous()):
        reason = "strided routing"
    if reason is None and (topk_weights.dtype, topk_ids.dtype) != (torch.float32, torch.int64):
        reason = f"routing in {topk_weights.dtype} and {topk_ids.dtype}"
    if reason is not None:
        return decline(
            "grouped_int_experts", reason, x, w13, w13_scales, w13_zero_points, w2, w2_scales, w2_zero_points,
            topk_weights, topk_ids, bits, w13_group_size, w2_group_size,
        )  # fmt: skip
    (num_tokens, hidden), num_experts, top_k = x.shape, w13.shape[0], topk_ids.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_tokens == 0:
        return out

    def run(config: Config) -> None:
        blocks = sort_by_expert(topk_ids, num_experts, config["M"])
        gated = _multiply(x, first, blocks, config, top_k, gated=True)
        values = _multiply(gated, second, blocks, config, 1, gated=False)
        sum_of_choices(values, topk_weights, topk_ids, num_experts, out)

    def fits(config: Config) -> bool:
        if x.dtype == torch.float32:
            # Larger tiles do not stay in registers.
            return config["M"] == 16 and config["N"] == 64
        return suits(config["M"], num_tokens * top_k / num_experts)

    zeros = w13_zero_points is not None
    key = str(x.dtype), bits, zeros, num_experts, hidden, second.depth, w13_group_size, top_k, size_class(num_tokens)
    TUNER.run(SPACE, key, run, fits)
    return out


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"grouped_int_experts": grouped_int_experts}
