"""Products of quantised weights and activations: FP8 in blocks, and 8 bits by rows; linear layers and experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trunnion.ops.moe import sum_of_experts
from trunnion.ops.registry import define

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Quantised values lie within these."""
TINY = 1e-12
"""Least scale: a row of zeros has one too."""


def quantise(
    x: torch.Tensor, dtype: torch.dtype, group: int | None = None, scale: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [..., K] -> values [..., K] of `dtype`, scales [..., ceil(K / group)] float32; their products are x, rounded.

    Symmetric, rounded to even. Without a group a row has one scale; a `scale` [1] that is given is that of all rows.
    """
    size = x.shape[-1]
    group = size if group is None else group
    rows = F.pad(x.float(), (0, -size % group)).unflatten(-1, (-1, group))  # [..., G, group]
    if scale is None:
        scales = (rows.abs().amax(-1) / LARGEST[dtype]).clamp(min=TINY)
    else:
        scales = scale.float().expand(rows.shape[:-1])
    values = (rows / scales.unsqueeze(-1)).clamp(-LARGEST[dtype], LARGEST[dtype])
    if dtype == torch.int8:
        values = values.round()
    return values.to(dtype).flatten(-2)[..., :size], scales


def dequantise_blocks(weight: torch.Tensor, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """weight [N, K], scale [ceil(N / rows), ceil(K / columns)] -> [N, K] float32."""
    num_rows, num_columns = weight.shape
    spread = scale.float().repeat_interleave(rows, 0)[:num_rows].repeat_interleave(columns, 1)[:, :num_columns]
    return weight.float() * spread


def dequantise_rows(weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """weight [N, K], scale [N] -> [N, K] float32."""
    return weight.float() * scale.float().unsqueeze(-1)


def _rounded(x: torch.Tensor, dtype: torch.dtype, group: int | None, scale: torch.Tensor | None) -> torch.Tensor:
    """x after quantisation and back, in float32."""
    values, scales = quantise(x, dtype, group, scale)
    size = x.shape[-1]
    return values.float() * scales.repeat_interleave(group or max(size, 1), -1)[..., :size]


def _fake_linear(x: torch.Tensor, weight: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


def _fake_experts(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@define(
    "block_fp8_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, int rows, int columns) -> Tensor",
    fake=_fake_linear,
)
def block_fp8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    rows: int,
    columns: int,
) -> torch.Tensor:
    """`x @ weight.T + bias`, of x quantised per token and `columns` features (DeepSeek-V3, arXiv:2412.19437, 3.3).

    x [..., K], weight [N, K] e4m3, weight_scale [ceil(N / rows), ceil(K / columns)] float32, bias [N] -> [..., N] of
    x's dtype; `rows` and `columns` are powers of two up to 128, `columns` from 32 on. Summed in float32.
    """
    out = _rounded(x, weight.dtype, columns, None) @ dequantise_blocks(weight, weight_scale, rows, columns).T
    return (out if bias is None else out + bias.float()).to(x.dtype)


@define(
    "w8a8_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? input_scale, Tensor? bias) -> Tensor",
    fake=_fake_linear,
)
def w8a8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """`x @ weight.T + bias`, of x quantised to the weight's dtype, per token unless there is an `input_scale`.

    x [..., K], weight [N, K] int8 or e4m3, weight_scale [N] float32, input_scale [1] float32, bias [N] -> [..., N] of
    x's dtype. Summed in float32 (int8: exactly, up to its 24 bits).
    """
    out = _rounded(x, weight.dtype, None, input_scale) @ dequantise_rows(weight, weight_scale).T
    return (out if bias is None else out + bias.float()).to(x.dtype)


@define(
    "block_fp8_experts(Tensor x, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale, Tensor topk_weights,"
    " Tensor topk_ids, int w13_rows, int w2_columns) -> Tensor",
    fake=_fake_experts,
)
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
    """`fused_experts` of weights as in `block_fp8_linear`; what enters each product is quantised.

    w13 [E, 2 * I, H] in blocks of `w13_rows` x 128, w2 [E, H, I] in blocks of 128 x `w2_columns`, w13_scale and
    w2_scale [E, ...] float32. Between the two products values are of x's dtype.
    """

    def apply(expert: int) -> torch.Tensor:
        gate, up = block_fp8_linear(x, w13[expert], w13_scale[expert], None, w13_rows, 128).chunk(2, dim=-1)
        return block_fp8_linear(F.silu(gate) * up, w2[expert], w2_scale[expert], None, 128, w2_columns)

    return sum_of_experts(x, topk_weights, topk_ids, w13.shape[0], apply)


@define(
    "w8a8_experts(Tensor x, Tensor w13, Tensor w13_scale, Tensor w2, Tensor w2_scale, Tensor topk_weights,"
    " Tensor topk_ids) -> Tensor",
    fake=_fake_experts,
)
def w8a8_experts(
    x: torch.Tensor,
    w13: torch.Tensor,
    w13_scale: torch.Tensor,
    w2: torch.Tensor,
    w2_scale: torch.Tensor,
    topk_weights: torch.Tensor,
    topk_ids: torch.Tensor,
) -> torch.Tensor:
    """`fused_experts` of weights as in `w8a8_linear`, activations quantised per token before each product.

    w13 [E, 2 * I, H], w13_scale [E, 2 * I] float32, w2 [E, H, I], w2_scale [E, H] float32.
    """

    def apply(expert: int) -> torch.Tensor:
        gate, up = w8a8_linear(x, w13[expert], w13_scale[expert], None, None).chunk(2, dim=-1)
        return w8a8_linear(F.silu(gate) * up, w2[expert], w2_scale[expert], None, None)

    return sum_of_experts(x, topk_weights, topk_ids, w13.shape[0], apply)
