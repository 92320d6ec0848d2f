"""Linear layers with weights alone of 4 or 8 bits: made dense in registers, tile by tile, and multiplied as they are.

For T tokens, N x K weights of c bits in groups of g, values of b bytes: `2 T N K` FLOPs and, with zero points,
`N K (c / 8 + (b + 1) / g) + T (K + N) b` bytes. With few tokens the weights' bandwidth is the limit, at 4 bits some
quarter of bfloat16's bytes; from some hundred on the tensor cores. Making a value dense costs about five instructions
for each tile of M tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
SPACE = Space(
    "grouped_int_linear",
    (
        Config({"M": 16, "N": 64, "K": 128}, num_warps=4, num_stages=3),
        Config({"M": 16, "N": 32, "K": 128}, num_warps=4, num_stages=4),
        Config({"M": 32, "N": 64, "K": 128}, num_warps=4, num_stages=3),
        Config({"M": 64, "N": 128, "K": 64}, num_warps=8, num_stages=3),
        Config({"M": 128, "N": 128, "K": 64}, num_warps=8, num_stages=3),
    ),
)
"""K: features at once, less where groups are smaller."""


@triton.jit
def dense_tile(packed, scale, zero, dtype: tl.constexpr, BITS: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """packed [N, K * BITS / 8] uint8, scale and zero point [N] -> [K, N], rounded to `dtype`."""
    if BITS == 4:
        # The lower half is the first of two neighbours.
        packed = tl.reshape(tl.join(packed & 15, packed >> 4), [N, K])
    values = (packed.to(tl.float32) - zero.to(tl.float32)[:, None]) * scale.to(tl.float32)[:, None]
    return tl.trans(values.to(dtype))


@triton.jit
def _grouped_int_kernel(
    x, weight, scales, zeros, bias, out, num_rows, num_columns, depth, x_row, num_groups, group_size,
    BITS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    # A step of K features is within a group.
    PER_BYTE: tl.constexpr = 8 // BITS
    row = tl.program_id(0).to(tl.int64) * M + tl.arange(0, M)
    column = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    is_row, is_column = row < num_rows, column < num_columns
    feature, byte = tl.arange(0, K), tl.arange(0, K // PER_BYTE)
    num_bytes = depth // PER_BYTE
    to_weight = weight + column[:, None] * num_bytes
    total = tl.zeros([M, N], tl.float32)
    for first in range(0, depth, K):
        at, byte_at = first + feature, first // PER_BYTE + byte
        left = tl.load(x + row[:, None] * x_row + at[None, :], mask=is_row[:, None] & (at < depth)[None, :], other=0.0)
        packed = tl.load(
            to_weight + byte_at[None, :], mask=is_column[:, None] & (byte_at < num_bytes)[None, :], other=0
        )
        group = column * num_groups + first // group_size
        scale = tl.load(scales + group, mask=is_column, other=0.0)
        zero = tl.full([N], 1 << (BITS - 1), tl.uint8)
        if HAS_ZEROS:
            zero = tl.load(zeros + group, mask=is_column, other=0)
        right = dense_tile(packed, scale, zero, x.dtype.element_ty, BITS, N, K)
        total = tl.dot(left, right, total, input_precision=PRECISION)
    if HAS_BIAS:
        total += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    mask = is_row[:, None] & is_column[None, :]
    tl.store(out + row[:, None] * num_columns + column[None, :], total.to(out.dtype.element_ty), mask=mask)


def grouped_int_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor | None,
    bias: torch.Tensor | None,
    bits: int,
    group_size: int,
) -> torch.Tensor:
    """As `trunnion::grouped_int_linear`."""
    if (reason := why_not(x, weight, scales, zero_points)) is not None:
        return decline("grouped_int_linear", reason, x, weight, scales, zero_points, bias, bits, group_size)
    rows = x.reshape(-1, x.shape[-1])
    (num_rows, depth), (num_columns, num_groups) = rows.shape, scales.shape
    out = torch.empty((num_rows, num_columns), dtype=x.dtype, device=x.device)
    is_wide = x.dtype == torch.float32

    def run(config: Config) -> None:
        # Three products in tf32 for one in float32 keep as many operands in registers.
        step = min(32 if is_wide else config["K"], largest_step(group_size) if num_groups > 1 else config["K"])
        launch(
            _grouped_int_kernel, (ceil_div(num_rows, config["M"]), ceil_div(num_columns, config["N"])),
            rows, weight, scales, weight if zero_points is None else zero_points, scales if bias is None else bias, out,
            num_rows, num_columns, depth, rows.stride(0), num_groups, group_size,
            BITS=bits, HAS_ZEROS=zero_points is not None, HAS_BIAS=bias is not None,
            PRECISION="tf32x3" if is_wide else "tf32", M=config["M"], N=config["N"], K=step, **config.options,
        )  # fmt: skip

    def fits(config: Config) -> bool:
        return config["M"] == 16 or (num_rows > 16 and config["M"] <= 2 * num_rows)

    key = str(x.dtype), bits, zero_points is not None, num_columns, depth, group_size, size_class(num_rows)
    TUNER.run(SPACE, key, run, fits)
    return out.unflatten(0, x.shape[:-1])


def largest_step(group_size: int) -> int:
    """The largest power of two that divides it."""
    return group_size & -group_size


def why_not(
    x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor | None
) -> str | None:
    """Why these cannot be multiplied here, or None."""
    if x.stride(-1) != 1:
        return "features that are not neighbours"
    if scales.dtype != x.dtype:
        return f"scales in {scales.dtype} for values in {x.dtype}"
    if not all(tensor.is_contiguous() for tensor in (weight, scales, zero_points) if tensor is not None):
        return "strided weights"
    return None


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"grouped_int_linear": grouped_int_linear}
