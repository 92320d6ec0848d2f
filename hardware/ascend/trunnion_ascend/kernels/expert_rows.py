"""What experts share: copies of tokens in the order of their experts, products of each expert's rows, and the way back.

No shape depends on the routing: it may be captured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch_npu

MAX_EXPERTS = 1024
"""Groups of one grouped product."""
COUNTS = 1
"""Of `expert_tokens_num_type` and `group_list_type`: the number of each expert's rows."""
BY_ROWS = 0
ONE_OUTPUT = 2
PLACES = 0
"""Of `row_idx_type`: where the copy for each choice lies."""
TOKENS_TOGETHER = 2
"""Of `drop_pad_mode`: nothing is dropped, and the choices of a token follow one another."""
NOT_QUANTISED = -1


@dataclass(frozen=True)
class ExpertRows:
    """Copies of tokens, one for each of a token's choices."""

    rows: torch.Tensor
    """[T * k, H], those of the first expert first."""
    places: torch.Tensor
    """[T * k] int32: which row is that of choice `c` of token `t`, at `t * k + c`."""
    counts: torch.Tensor
    """[E] int64: rows of each expert."""
    scales: torch.Tensor
    """[T * k] float32: the rows' scales, if tokens have any."""


def why_not_experts(num_experts: int) -> str | None:
    """Why the grouped products cannot run so many experts, or None."""
    if not 1 < num_experts <= MAX_EXPERTS:
        return f"{num_experts} experts; grouped products take 2 to {MAX_EXPERTS}"
    return None


def in_order(
    x: torch.Tensor, topk_ids: torch.Tensor, num_experts: int, scales: torch.Tensor | None = None
) -> ExpertRows:
    """x [T, H] with scales [T] float32 or none, topk_ids [T, k]; T is at least 1."""
    rows, places, counts, row_scales = torch_npu.npu_moe_init_routing_v2(
        x.contiguous(),
        topk_ids.int(),
        scale=scales,
        active_num=topk_ids.numel(),
        expert_num=num_experts,
        expert_tokens_num_type=COUNTS,
        expert_tokens_num_flag=True,
        quant_mode=NOT_QUANTISED,
        active_expert_range=[0, num_experts],
        row_idx_type=PLACES,
    )
    return ExpertRows(rows, places, counts, row_scales)


def product(
    rows: torch.Tensor,
    weight: torch.Tensor,
    counts: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    row_scales: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """rows [R, K] by the weight [E, N, K] of their experts, plus its bias [E, N] -> [R, N].

    Of 8 bits with scales [E, N] and [R]. The operator takes biases of rows in bfloat16 in float32.
    """
    if bias is not None and rows.dtype == torch.bfloat16:
        bias = bias.float()
    (out,) = torch_npu.npu_grouped_matmul(
        [rows],
        [weight.transpose(1, 2)],
        bias=None if bias is None else [bias],
        scale=None if scale is None else [scale],
        per_token_scale=None if row_scales is None else [row_scales],
        group_list=counts,
        group_list_type=COUNTS,
        group_type=BY_ROWS,
        split_item=ONE_OUTPUT,
        output_dtype=dtype,
    )
    return out


def summed(rows: torch.Tensor, places: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
    """rows [T * k, H] -> [T, H]: each token's choices, times their weights [T, k] float32.

    The operator is defined for weights in float32 with rows in bfloat16, where they would lose too much, and for
    weights in the rows' dtype (github.com/hicann/ops-transformer, moe_finalize_routing_v2_def.cpp).
    """
    weights = topk_weights.half() if rows.dtype == torch.float16 else topk_weights
    return torch_npu.npu_moe_finalize_routing(
        rows, None, None, None, weights, places, None, drop_pad_mode=TOKENS_TOGETHER
    )
