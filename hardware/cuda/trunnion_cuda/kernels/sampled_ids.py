"""Ids taken on the device from where they were sampled, and padding of rows whose number only the device knows.

Both move a few bytes per token and are bound by the launch itself.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two

ARCHITECTURES = EVERY_ARCHITECTURE
BLOCK = 256


@triton.jit
def _take_sampled_kernel(input_ids, sampled_ids, out, num_tokens, num_sampled, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = token < num_tokens
    own = tl.load(input_ids + token, mask=mask, other=0)
    row = tl.minimum(tl.maximum(-1 - own, 0), num_sampled - 1)
    taken = tl.load(sampled_ids + row, mask=mask & (own < 0), other=0)
    tl.store(out + token, tl.where(own < 0, taken, own), mask=mask)


def take_sampled(input_ids: torch.Tensor, sampled_ids: torch.Tensor) -> torch.Tensor:
    """As `trunnion::take_sampled`."""
    if not (input_ids.is_contiguous() and sampled_ids.is_contiguous()):
        return decline("take_sampled", "strided ids", input_ids, sampled_ids)
    out = torch.empty_like(input_ids)
    num_tokens = input_ids.numel()
    grid = (ceil_div(num_tokens, BLOCK),)
    launch(_take_sampled_kernel, grid, input_ids, sampled_ids, out, num_tokens, sampled_ids.numel(), BLOCK=BLOCK)
    return out


@triton.jit
def _pad_rows_kernel(rows, num_used, width, VALUE: tl.constexpr, REPEATS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    used = tl.load(num_used)
    mask = (row >= used) & (column < width)
    fill = tl.full([BLOCK], VALUE, tl.int32)
    if REPEATS:
        last = tl.maximum(used - 1, 0).to(tl.int64)
        fill = tl.load(rows + last * width + column, mask=mask & (used > 0), other=0)
    tl.store(rows + row * width + column, fill, mask=mask)


def pad_rows(rows: torch.Tensor, num_used: torch.Tensor, value: int | None) -> None:
    """Fill the rows of `rows` [N, ...] from `num_used` on, in place, with `value` or (None) with the last used row.

    rows are int32 and contiguous; num_used is an int32 of one element on the device, so that a captured graph pads
    anew in each replay. Without a used row there is none to repeat, and zeros fill.

    Raises:
        ValueError: rows of another dtype or layout.
    """
    if rows.dtype != torch.int32 or not rows.is_contiguous():
        raise ValueError(f"pad_rows takes contiguous int32 rows, not {rows.dtype} of strides {rows.stride()}")
    num_rows = rows.shape[0]
    width = rows.numel() // num_rows if num_rows else 0
    block = min(power_of_two(width), 1024)
    grid = num_rows, ceil_div(width, block)
    launch(_pad_rows_kernel, grid, rows, num_used, width, VALUE=value or 0, REPEATS=value is None, BLOCK=block)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"take_sampled": take_sampled}
