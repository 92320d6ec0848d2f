"""Merges attention over two sets of keys by their log-sum-exps, in place (arXiv:2402.05099; FlashInfer's cascade).

T rows of H heads of D features of b bytes: `3 T H D b` bytes, and 8 of sums for each row and head; 3 FLOPs per element
of the result. Memory bandwidth is the limit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two

ARCHITECTURES = EVERY_ARCHITECTURE


ELEMENTS = 2048
"""Of one program: as many heads as there is room for."""


@triton.jit
def _merge_kernel(
    out, lse, other, other_lse, num_heads, out_token, out_head, lse_token, other_token, other_head, other_lse_token,
    HEAD_DIM: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * H + tl.arange(0, H)
    is_head = head < num_heads
    first = tl.load(lse + token * lse_token + head, mask=is_head, other=float("-inf"))
    second = tl.load(other_lse + token * other_lse_token + head, mask=is_head, other=float("-inf"))
    top = tl.maximum(first, second)
    # Neither side has keys: minus infinity less itself would be NaN.
    base = tl.where(top == float("-inf"), 0.0, top)
    first_weight = tl.exp2(first - base)
    second_weight = tl.exp2(second - base)
    total = first_weight + second_weight
    total = tl.where(total == 0.0, 1.0, total)
    feature = tl.arange(0, D)
    mask = is_head[:, None] & (feature < HEAD_DIM)[None, :]
    out_at = out + token * out_token + head[:, None] * out_head + feature[None, :]
    other_at = other + token * other_token + head[:, None] * other_head + feature[None, :]
    # A side without keys may hold anything: zero times NaN is NaN.
    mine = tl.load(out_at, mask=mask & (first_weight > 0.0)[:, None], other=0.0).to(tl.float32)
    theirs = tl.load(other_at, mask=mask & (second_weight > 0.0)[:, None], other=0.0).to(tl.float32)
    merged = mine * (first_weight / total)[:, None] + theirs * (second_weight / total)[:, None]
    tl.store(out_at, merged.to(out.dtype.element_ty), mask=mask)


def merge_states(out: torch.Tensor, lse: torch.Tensor, other: torch.Tensor, other_lse: torch.Tensor) -> None:
    """Make `out` the attention over the keys of both sides, which share none.

    out and other [T, H, D] of one dtype: the attention of each side. lse and other_lse [T, H] float32: log-sum-exps of
    the scores to base 2, minus infinity where a row has no keys on that side; what `out` or `other` holds there is not
    read. A row without keys on both sides becomes zero. Computed in float32.

    Raises:
        ValueError: shapes, dtypes or layouts that do not go together.
    """
    shapes = out.shape == other.shape and lse.shape == other_lse.shape == out.shape[:2]
    if not shapes or out.dtype != other.dtype or {lse.dtype, other_lse.dtype} != {torch.float32}:
        raise ValueError(
            f"cannot merge {tuple(out.shape)} {out.dtype} with sums {tuple(lse.shape)} {lse.dtype} and "
            f"{tuple(other.shape)} {other.dtype} with sums {tuple(other_lse.shape)} {other_lse.dtype}"
        )
    strides = [tensor.stride(-1) for tensor in (out, lse, other, other_lse) if tensor.shape[-1] > 1]
    if set(strides) - {1}:
        raise ValueError(f"cannot merge rows whose features or heads are not neighbours in memory: strides {strides}")
    num_tokens, num_heads, head_dim = out.shape
    block_d = power_of_two(head_dim)
    block_h = min(power_of_two(num_heads), max(ELEMENTS // block_d, 1))
    launch(
        _merge_kernel, (num_tokens, ceil_div(num_heads, block_h)), out, lse, other, other_lse, num_heads, out.stride(0),
        out.stride(1), lse.stride(0), other.stride(0), other.stride(1), other_lse.stride(0), HEAD_DIM=head_dim,
        H=block_h, D=block_d,
    )  # fmt: skip
