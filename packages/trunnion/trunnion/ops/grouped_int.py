"""Products with weights alone quantised: integers of 4 or 8 bits, a scale and a zero point per row and group; linear
layers and experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trunnion.ops.moe import sum_of_experts
from trunnion.ops.registry import define


def unpack(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """packed [..., K * bits / 8] uint8 -> values [..., K] uint8; of two in a byte, the lower half is the first."""
    if bits == 8:
        return packed
    return torch.stack((packed & 15, packed >> 4), -1).flatten(-2)


def unpack_wide(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """As `unpack`, to float32: devices without shifts of bytes multiply and round."""
    numbers = packed.float()
    if bits == 8:
        return numbers
    second = (numbers * 0.0625).floor()
    return torch.stack((numbers - second * 16, second), -1).flatten(-2)


def pack(values: torch.Tensor, bits: int) -> torch.Tensor:
    """values [..., K], 0 ... 2 ** bits - 1 in any dtype -> [..., K * bits / 8] uint8, as `unpack` reads them."""
    if bits == 4:
        first, second = values.unflatten(-1, (-1, 2)).unbind(-1)
        values = first + second * 16
    return values.to(torch.uint8)


def dequantise_groups(
    weight: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None, bits: int, group_size: int
) -> torch.Tensor:
    """weight [N, K * bits / 8] uint8, scales [N, G], zero_points [N, G] uint8 -> [N, K] float32, exact."""
    values = unpack_wide(weight, bits)

    def spread(groups: torch.Tensor) -> torch.Tensor:
        return groups.float().repeat_interleave(group_size, -1)[..., : values.shape[-1]]

    # In place: what a step keeps at once is bounded.
    values -= 2 ** (bits - 1) if zero_points is None else spread(zero_points)
    return values.mul_(spread(scales))


def _fake_linear(x: torch.Tensor, weight: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty((*x.shape[:-1], weight.shape[0]), dtype=x.dtype, device=x.device)


@define(
    "grouped_int_linear(Tensor x, Tensor weight, Tensor scales, Tensor? zero_points, Tensor? bias, int bits,"
    " int group_size) -> Tensor",
    fake=_fake_linear,
)
def grouped_int_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: int,
    group_size: int,
) -> torch.Tensor:
    """`x @ dense.T + bias` with `dense = (weight - zero point) * scale` rounded to x's dtype.

    x [..., K], weight [N, K * bits / 8] uint8 (as `unpack`; bits 4 or 8), scales [N, ceil(K / group_size)] of x's
    dtype, zero_points likewise in uint8 (None: 2 ** (bits - 1)), bias [N] -> [..., N] of x's dtype. `group_size` is a
    multiple of 32, or at least K.
    """
    dense = dequantise_groups(weight, scales, zero_points, bits, group_size).to(x.dtype)
    return F.linear(x, dense, bias)


def _fake_experts(x: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@define(
    "grouped_int_experts(Tensor x, Tensor w13, Tensor w13_scales, Tensor? w13_zero_points, Tensor w2, Tensor w2_scales,"
    " Tensor? w2_zero_points, Tensor topk_weights, Tensor topk_ids, int bits, int w13_group_size, int w2_group_size)"
    " -> Tensor",
    fake=_fake_experts,
)
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
    """`fused_experts` of weights as in `grouped_int_linear`: w13 [E, 2 * I, ...], w2 [E, H, ...], and so their scales
    and zero points."""

    def of_expert(zero_points: torch.Tensor | None, expert: int) -> torch.Tensor | None:
        return None if zero_points is None else zero_points[expert]

    def apply(expert: int) -> torch.Tensor:
        up_zeros, down_zeros = of_expert(w13_zero_points, expert), of_expert(w2_zero_points, expert)
        up = grouped_int_linear(x, w13[expert], w13_scales[expert], up_zeros, None, bits, w13_group_size)
        gate, up = up.chunk(2, dim=-1)
        return grouped_int_linear(
            F.silu(gate) * up, w2[expert], w2_scales[expert], down_zeros, None, bits, w2_group_size
        )

    return sum_of_experts(x, topk_weights, topk_ids, w13.shape[0], apply)
