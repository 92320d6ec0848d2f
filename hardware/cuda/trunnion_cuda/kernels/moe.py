"""Experts without quantisation: a grouped GEMM over blocks of rows that go to one expert, twice, and the sum.

T tokens, k experts each of E, H hidden and I intermediate features of b bytes. The GEMMs do `6 T k H I` FLOPs and read
`3 H I b` bytes for each expert that has a token: with few tokens an expert the weights' bandwidth is the limit, with
many (some hundred on Hopper) the tensor cores.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.activation import gated_by_clamped_swiglu, gated_by_silu
from trunnion_cuda.kernels.expert_blocks import ExpertBlocks, sort_by_expert, suits, sum_of_choices
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
SPACE = Space(
    "fused_experts",
    (
        Config({"M": 16, "N": 64, "K": 64}, num_warps=4, num_stages=3),
        Config({"M": 16, "N": 128, "K": 64}, num_warps=4, num_stages=3),
        Config({"M": 32, "N": 64, "K": 64}, num_warps=4, num_stages=3),
        Config({"M": 64, "N": 64, "K": 64}, num_warps=4, num_stages=3),
        Config({"M": 128, "N": 64, "K": 64}, num_warps=8, num_stages=3),
    ),
)
"""M: rows of one expert per block. The first GEMM keeps two tiles of N columns: gate and up."""


@triton.jit
def _grouped_gemm_kernel(
    x, weight, bias, out, choices, block_experts, num_choices, num_columns, depth, x_row, alpha, limit,
    ROWS_PER_CHOICE: tl.constexpr, GATED: tl.constexpr, CLAMPED: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """out[choice] = x[choice / ROWS_PER_CHOICE] weight[expert]^T + bias[expert]; GATED: gate rows, then up rows."""
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
        w_at = weight + (expert * rows + column)[None, :] * depth + inner[:, None]
        up_at = weight + (expert * rows + num_columns + column)[None, :] * depth + inner[:, None]
        total = tl.zeros([M, N], tl.float32)
        up_total = tl.zeros([M, N], tl.float32)
        for first in range(0, depth, K):
            is_inner = first + inner < depth
            a = tl.load(x_at + first, mask=is_choice[:, None] & is_inner[None, :], other=0.0)
            b = tl.load(w_at + first, mask=is_inner[:, None] & is_column[None, :], other=0.0)
            total = tl.dot(a, b, total, input_precision=PRECISION)
            if GATED:
                b = tl.load(up_at + first, mask=is_inner[:, None] & is_column[None, :], other=0.0)
                up_total = tl.dot(a, b, up_total, input_precision=PRECISION)
        dtype = out.dtype.element_ty
        if HAS_BIAS:
            bias_at = bias + expert * rows + column
            total += tl.load(bias_at, mask=is_column, other=0.0).to(tl.float32)[None, :]
            if GATED:
                up_total += tl.load(bias_at + num_columns, mask=is_column, other=0.0).to(tl.float32)[None, :]
        if GATED:
            if CLAMPED:
                total = gated_by_clamped_swiglu(total, up_total, alpha, limit, dtype)
            else:
                total = gated_by_silu(total, up_total, dtype)
        at = out + choice.to(tl.int64)[:, None] * num_columns + column[None, :]
        tl.store(at, total.to(dtype), mask=is_choice[:, None] & is_column[None, :])


def _multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    blocks: ExpertBlocks,
    config: Config,
    rows_per_choice: int,
    *,
    gated: bool,
    alpha: float = 1.0,
    limit: float | None = None,
) -> torch.Tensor:
    """x [R, K], of which choice c reads row `c // rows_per_choice`, weight [E, N or 2 N, K] and bias [E, N or 2 N] ->
    [num_choices, N]; a limit is that of `clamped_swiglu`."""
    columns = weight.shape[1] // 2 if gated else weight.shape[1]
    out = torch.empty((blocks.num_choices, columns), dtype=x.dtype, device=x.device)
    is_wide = x.dtype == torch.float32
    launch(
        _grouped_gemm_kernel, (blocks.experts.shape[0], ceil_div(columns, config["N"])),
        x, weight, weight if bias is None else bias, out, blocks.choices, blocks.experts, blocks.num_choices, columns,
        x.shape[1], x.stride(0), float(alpha), 0.0 if limit is None else float(limit),
        ROWS_PER_CHOICE=rows_per_choice, GATED=gated, CLAMPED=limit is not None, HAS_BIAS=bias is not None,
        PRECISION="tf32x3" if is_wide else "tf32",
        # Three products in tf32 for one in float32 keep as many operands in registers.
        M=config["M"], N=config["N"], K=32 if is_wide else config["K"], **config.options,
    )  # fmt: skip
    return out


def _why_not(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_bias: torch.Tensor | None,
    w2_bias: torch.Tensor | None,
) -> str | None:
    biases = [bias for bias in (w13_bias, w2_bias) if bias is not None]
    if not all(tensor.is_contiguous() for tensor in (w13, w2, topk_weights, topk_ids, *biases)) or x.stride(-1) != 1:
        return "strided weights or routing"
    if topk_weights.dtype != torch.float32 or topk_ids.dtype != torch.int64:
        return "dtypes that differ"
    if any(tensor.dtype != x.dtype for tensor in (w13, w2, *biases)):
        return "dtypes that differ"
    return None


def fused_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w2: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
    w13_bias: torch.Tensor | None = None,
    w2_bias: torch.Tensor | None = None,
    swiglu_alpha: float = 1.0,
    swiglu_limit: float | None = None,
) -> torch.Tensor:
    """As `trunnion::fused_experts`; ids that name no expert here contribute nothing."""
    reason = _why_not(x, w13, w2, topk_weights, topk_ids, w13_bias, w2_bias)
    if reason is not None:
        more = w13_bias, w2_bias, swiglu_alpha, swiglu_limit
        return decline("fused_experts", reason, x, w13, w2, topk_weights, topk_ids, *more)
    (num_tokens, hidden), num_experts, top_k = x.shape, w13.shape[0], topk_ids.shape[1]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_tokens == 0:
        return out

    def run(config: Config) -> None:
        blocks = sort_by_expert(topk_ids, num_experts, config["M"])
        gated = _multiply(x, w13, w13_bias, blocks, config, top_k, gated=True, alpha=swiglu_alpha, limit=swiglu_limit)
        values = _multiply(gated, w2, w2_bias, blocks, config, 1, gated=False)
        sum_of_choices(values, topk_weights, topk_ids, num_experts, out)

    def fits(config: Config) -> bool:
        if x.dtype == torch.float32:
            # Larger tiles do not stay in registers.
            return config["M"] <= 32 and config["N"] == 64
        return suits(config["M"], num_tokens * top_k / num_experts)

    key = str(x.dtype), num_experts, hidden, w2.shape[2], top_k, size_class(num_tokens)
    TUNER.run(SPACE, key, run, fits)
    return out


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"fused_experts": fused_experts}
