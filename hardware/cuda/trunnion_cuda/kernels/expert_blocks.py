"""What a grouped GEMM of experts starts from and ends in: choices sorted into blocks of one expert, and their sum.

T tokens, k experts each of E, H features of b bytes: sorting reads `8 T k E` bytes from cache, summing moves
`T (k + 1) H b`. No shape depends on the routing, no atomics: results repeat, and the whole may be captured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two

ARCHITECTURES = EVERY_ARCHITECTURE
SCAN = 1024
"""Chosen experts that the sort looks at in one go."""


@dataclass(frozen=True, slots=True)
class ExpertBlocks:
    """Choices (token t's j-th is `t * k + j`) sorted by expert, each expert's padded to whole blocks of `size`."""

    choices: torch.Tensor
    """[max_blocks * size] int32; `num_choices` and more: padding. Beyond the last block anything."""
    experts: torch.Tensor
    """[max_blocks] int32: the expert of a block, -1 beyond the last."""
    size: int
    num_choices: int


@triton.jit
def _count_kernel(ids, counts, num_choices, SCAN: tl.constexpr):
    expert = tl.program_id(0)
    found = tl.zeros([SCAN], tl.int32)
    for first in range(0, num_choices, SCAN):
        at = first + tl.arange(0, SCAN)
        found += (tl.load(ids + at, mask=at < num_choices, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(found))


@triton.jit
def _sort_kernel(
    ids, counts, choices, block_experts, num_choices, num_experts, max_blocks,
    SIZE: tl.constexpr, EXPERTS: tl.constexpr, SCAN: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0)
    each = tl.arange(0, EXPERTS)
    blocks = tl.cdiv(tl.load(counts + each, mask=each < num_experts, other=0), SIZE)
    first_block = tl.sum(tl.where(each < expert, blocks, 0))
    own_blocks = tl.sum(tl.where(each == expert, blocks, 0))
    place = first_block * SIZE
    for first in range(0, num_choices, SCAN):
        at = first + tl.arange(0, SCAN)
        is_own = tl.load(ids + at, mask=at < num_choices, other=-1) == expert
        order = tl.cumsum(is_own.to(tl.int32), axis=0)
        tl.store(choices + place + order - 1, at, mask=is_own)
        place += tl.max(order)
    end = (first_block + own_blocks) * SIZE
    padding = tl.arange(0, SIZE)
    tl.store(choices + place + padding, num_choices + tl.zeros([SIZE], tl.int32), mask=place + padding < end)
    for block in range(first_block, first_block + own_blocks):
        tl.store(block_experts + block, expert)
    if expert == num_experts - 1:
        for block in range(first_block + own_blocks, max_blocks):
            tl.store(block_experts + block, -1)


def sort_by_expert(topk_ids: torch.Tensor, num_experts: int, size: int) -> ExpertBlocks:
    """Sort topk_ids [T, k] int64, contiguous, into blocks of `size` choices of one expert; other ids are left out."""
    num_choices, device = topk_ids.numel(), topk_ids.device
    max_blocks = min(ceil_div(num_choices + num_experts * (size - 1), size), num_choices)
    counts = torch.empty(num_experts, dtype=torch.int32, device=device)
    choices = torch.empty(max_blocks * size, dtype=torch.int32, device=device)
    block_experts = torch.empty(max_blocks, dtype=torch.int32, device=device)
    scan = min(SCAN, max(power_of_two(num_choices), 16))
    if num_choices:
        launch(_count_kernel, (num_experts,), topk_ids, counts, num_choices, SCAN=scan)
        launch(
            _sort_kernel, (num_experts,), topk_ids, counts, choices, block_experts, num_choices, num_experts,
            max_blocks, SIZE=size, EXPERTS=power_of_two(num_experts), SCAN=scan,
        )  # fmt: skip
    return ExpertBlocks(choices=choices, experts=block_experts, size=size, num_choices=num_choices)


def suits(size: int, rows_per_expert: float) -> bool:
    """Blocks that are mostly padding waste the tensor cores, small ones read an expert's weights several times."""
    if rows_per_expert < 16:
        return size <= 32
    return size >= 64 if rows_per_expert > 128 else 32 <= size <= 64


@triton.jit
def _combine_kernel(values, weights, ids, out, num_experts, size, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = column < size
    total = tl.zeros([BLOCK], tl.float32)
    for each in tl.static_range(TOP_K):
        choice = token * TOP_K + each
        expert = tl.load(ids + choice)
        # Of an expert that is not here there is no row to read.
        is_here = (expert >= 0) & (expert < num_experts)
        value = tl.load(values + choice * size + column, mask=mask & is_here, other=0.0).to(tl.float32)
        total += tl.where(is_here, value * tl.load(weights + choice), 0.0)
    tl.store(out + token * size + column, total.to(out.dtype.element_ty), mask=mask)


def sum_of_choices(
    values: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor, num_experts: int, out: torch.Tensor
) -> None:
    """values [T * k, H], weights and ids [T, k] -> out [T, H]: weighted rows of each token, added up in float32."""
    (num_tokens, top_k), hidden = topk_ids.shape, values.shape[1]
    block = min(power_of_two(hidden), 1024)
    launch(
        _combine_kernel, (num_tokens, ceil_div(hidden, block)),
        values, topk_weights, topk_ids, out, num_experts, hidden, TOP_K=top_k, BLOCK=block,
    )  # fmt: skip
