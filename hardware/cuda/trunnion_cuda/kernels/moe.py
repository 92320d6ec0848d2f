"""Mixture of experts: routing, sorting tokens into blocks of one expert, the experts as one grouped GEMM, the sum.

T tokens, k experts each of E, H hidden and I intermediate features of b bytes. The GEMMs do `6 T k H I` FLOPs and read
`3 H I b` bytes for each expert that has a token: with few tokens an expert the weights' bandwidth is the limit, with
many (some hundred on Hopper) the tensor cores. Routing, sorting and summing move `T (4 E + 12 k)`, about `8 T k E`
(from cache) and `T k H b` bytes. No shape depends on the routing, no atomics: results repeat, and the whole may be
captured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from trunnion.ops.registry import decline
from trunnion_cuda.kernels.activation import silu
from trunnion_cuda.kernels.launch import EVERY_ARCHITECTURE, ceil_div, launch, power_of_two
from trunnion_cuda.kernels.tuning import TUNER, Config, Space, size_class

ARCHITECTURES = EVERY_ARCHITECTURE
MAX_EXPERTS = 1024
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
SCAN = 1024
"""Chosen experts that the sort looks at in one go."""


@triton.jit
def _routing_kernel(
    logits, weights, ids, num_tokens, num_experts, logits_row,
    TOP_K: tl.constexpr, RENORMALIZE: tl.constexpr, GROUPS: tl.constexpr, TOP_GROUPS: tl.constexpr,
    ROWS: tl.constexpr, EXPERTS: tl.constexpr, CHOICES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    expert = tl.arange(0, EXPERTS)
    is_row = row < num_tokens
    is_expert = (expert < num_experts)[None, :]
    score = tl.load(
        logits + row[:, None] * logits_row + expert[None, :], mask=is_row[:, None] & is_expert, other=float("-inf")
    )
    score = tl.where(is_expert & is_row[:, None], score.to(tl.float32), float("-inf"))
    score = tl.where(is_row[:, None], score, 0.0)
    score = tl.exp(score - tl.max(score, axis=1)[:, None])
    score = tl.where(is_expert, score, 0.0)
    score = score / tl.sum(score, axis=1)[:, None]
    if GROUPS > 1:
        group = expert // (num_experts // GROUPS)
        # Each expert carries its group's score, so that the best group is the first of the best experts'.
        of_group = tl.zeros([ROWS, EXPERTS], tl.float32)
        for each in tl.static_range(GROUPS):
            best = tl.max(tl.where((group == each)[None, :] & is_expert, score, -1.0), axis=1)
            of_group = tl.where((group == each)[None, :], best[:, None], of_group)
        of_group = tl.where(is_expert, of_group, -1.0)
        chosen = tl.zeros([ROWS, EXPERTS], tl.int32)
        for _ in tl.static_range(TOP_GROUPS):
            taken = tl.argmax(of_group, axis=1) // (num_experts // GROUPS)
            is_taken = group[None, :] == taken[:, None]
            chosen = tl.where(is_taken, 1, chosen)
            of_group = tl.where(is_taken, -1.0, of_group)
        score = tl.where(chosen != 0, score, 0.0)
    # A row of NaN must still name experts that exist.
    rank = tl.where(is_expert, tl.where(score == score, score, 2.0), -1.0)
    choice = tl.arange(0, CHOICES)
    best_scores = tl.zeros([ROWS, CHOICES], tl.float32)
    best_ids = tl.zeros([ROWS, CHOICES], tl.int32)
    for each in tl.static_range(TOP_K):
        best = tl.argmax(rank, axis=1)
        is_best = expert[None, :] == best[:, None]
        weight = tl.sum(tl.where(is_best, score, 0.0), axis=1)
        rank = tl.where(is_best, -1.0, rank)
        best_scores = tl.where((choice == each)[None, :], weight[:, None], best_scores)
        best_ids = tl.where((choice == each)[None, :], best[:, None].to(tl.int32), best_ids)
    if RENORMALIZE:
        best_scores = best_scores / tl.sum(best_scores, axis=1)[:, None]
    at = row[:, None] * TOP_K + choice[None, :]
    mask = is_row[:, None] & (choice < TOP_K)[None, :]
    tl.store(weights + at, best_scores, mask=mask)
    tl.store(ids + at, best_ids.to(tl.int64), mask=mask)


def _route(
    name: str, logits: torch.Tensor, top_k: int, renormalize: bool, groups: int, top_groups: int, *args: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, num_experts = logits.shape
    if num_experts > MAX_EXPERTS or logits.stride(1) != 1:
        reason = f"more than {MAX_EXPERTS} experts" if num_experts > MAX_EXPERTS else "strided logits"
        return decline(name, reason, logits, top_k, *args, renormalize)
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int64, device=logits.device)
    experts = power_of_two(num_experts)
    rows = min(max(1024 // experts, 1), power_of_two(num_tokens))
    launch(
        _routing_kernel, (ceil_div(num_tokens, rows),), logits, weights, ids, num_tokens, num_experts, logits.stride(0),
        TOP_K=top_k, RENORMALIZE=renormalize, GROUPS=groups, TOP_GROUPS=top_groups, ROWS=rows, EXPERTS=experts,
        CHOICES=power_of_two(top_k),
    )  # fmt: skip
    return weights, ids


def topk_softmax(router_logits: torch.Tensor, top_k: int, renormalize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::topk_softmax`; of equal scores the lower expert."""
    return _route("topk_softmax", router_logits, top_k, renormalize, 1, 1)


def grouped_topk(
    router_logits: torch.Tensor, top_k: int, num_expert_group: int, topk_group: int, renormalize: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `trunnion::grouped_topk`; of equal scores the lower group and expert."""
    groups = num_expert_group, topk_group
    return _route("grouped_topk", router_logits, top_k, renormalize, *groups, *groups)


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


@triton.jit
def _grouped_gemm_kernel(
    x, weight, out, choices, block_experts, num_choices, num_columns, depth, x_row,
    ROWS_PER_CHOICE: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
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
        if GATED:
            opened = silu(total.to(dtype).to(tl.float32)).to(dtype).to(tl.float32)
            total = opened * up_total.to(dtype).to(tl.float32)
        at = out + choice.to(tl.int64)[:, None] * num_columns + column[None, :]
        tl.store(at, total.to(dtype), mask=is_choice[:, None] & is_column[None, :])


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


def _fits(config: Config, rows_per_expert: float, is_wide: bool) -> bool:
    """Blocks that are mostly padding waste the tensor cores, small ones read an expert's weights several times."""
    if is_wide:
        # float32: larger tiles do not stay in registers.
        return config["M"] <= 32 and config["N"] == 64
    if rows_per_expert < 16:
        return config["M"] <= 32
    return config["M"] >= 64 if rows_per_expert > 128 else 32 <= config["M"] <= 64


def fused_experts(
    x: torch.Tensor, w13: torch.Tensor, w2: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
) -> torch.Tensor:
    """As `trunnion::fused_experts`; ids that name no expert here contribute nothing."""
    tensors = w13, w2, topk_weights, topk_ids
    if not all(tensor.is_contiguous() for tensor in tensors) or x.stride(-1) != 1:
        return decline("fused_experts", "strided weights or routing", x, *tensors)
    if topk_weights.dtype != torch.float32 or topk_ids.dtype != torch.int64 or not x.dtype == w13.dtype == w2.dtype:
        return decline("fused_experts", "dtypes that differ", x, *tensors)
    (num_tokens, hidden), num_experts, top_k = x.shape, w13.shape[0], topk_ids.shape[1]
    intermediate = w2.shape[2]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if num_tokens == 0:
        return out
    precision = "tf32x3" if x.dtype == torch.float32 else "tf32"

    def run(config: Config) -> None:
        # Three products in tf32 for one in float32 keep as many operands in registers.
        blocks_of = dict(config.blocks, K=32) if x.dtype == torch.float32 else config.blocks
        blocks = sort_by_expert(topk_ids, num_experts, config["M"])
        num_choices, max_blocks = blocks.num_choices, blocks.experts.shape[0]
        gated = torch.empty((num_choices, intermediate), dtype=x.dtype, device=x.device)
        values = torch.empty((num_choices, hidden), dtype=x.dtype, device=x.device)
        for source, weight, target, per_choice in ((x, w13, gated, top_k), (gated, w2, values, 1)):
            columns = target.shape[1]
            launch(
                _grouped_gemm_kernel, (max_blocks, ceil_div(columns, config["N"])),
                source, weight, target, blocks.choices, blocks.experts, num_choices, columns, source.shape[1],
                source.stride(0), ROWS_PER_CHOICE=per_choice, GATED=weight is w13, PRECISION=precision,
                **blocks_of, **config.options,
            )  # fmt: skip
        block = min(power_of_two(hidden), 1024)
        grid = num_tokens, ceil_div(hidden, block)
        launch(
            _combine_kernel, grid, values, topk_weights, topk_ids, out, num_experts, hidden, TOP_K=top_k, BLOCK=block
        )

    key = str(x.dtype), num_experts, hidden, intermediate, top_k, size_class(num_tokens)
    is_wide = x.dtype == torch.float32
    TUNER.run(SPACE, key, run, lambda config: _fits(config, num_tokens * top_k / num_experts, is_wide))
    return out


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"topk_softmax": topk_softmax, "grouped_topk": grouped_topk, "fused_experts": fused_experts}
