"""Mixtures of experts: which experts a token goes to, where its copies lie, and how they come back."""

from __future__ import annotations

import torch

from ascend_simulator.rules import Bool, Double, Int, Ints, Tensor, rule

DOCS = "Ascend/op-plugin docs/zh/custom_APIs/torch_npu/torch_npu-"
SOFTMAX, SIGMOID = 0, 1
CUMULATIVE, COUNTS, PAIRS = 0, 1, 2
BY_MAXIMUM = 0
TOP_OF_GROUP = 2


@rule("aclnnMoeGatingTopKSoftmax", source=DOCS + "npu_moe_gating_top_k_softmax.md")
def gating_top_k_softmax(
    x: Tensor, finished: Tensor | None, k: Int, out: Tensor, expert_out: Tensor, row_out: Tensor
) -> None:
    """The k largest of a softmax, and numbers of the pairs (token, choice), choice by choice.

    A finished row's experts are the number after the last.
    """
    weights, experts = torch.topk(torch.softmax(x.float(), -1), k, -1)
    if finished is not None:
        experts = experts.masked_fill(finished.bool()[..., None], x.shape[-1])
    out.copy_(weights)
    expert_out.copy_(experts)
    rows = expert_out.numel() // k
    row_out.copy_(torch.arange(rows * k).view(k, rows).t().reshape(row_out.shape))


@rule("aclnnMoeGatingTopK", source=DOCS + "npu_moe_gating_top_k.md")
def gating_top_k(
    x: Tensor,
    bias: Tensor | None,
    k: Int,
    k_group: Int,
    group_count: Int,
    group_select_mode: Int,
    renorm: Int,
    norm_type: Int,
    wants_scores: Bool,
    scale: Double,
    epsilon: Double,
    out: Tensor,
    expert_out: Tensor,
    scores_out: Tensor,
) -> None:
    """Scores choose groups, and experts within them; a bias takes part in the choice, not in the weights."""
    scores = torch.softmax(x.float(), -1) if norm_type == SOFTMAX else torch.sigmoid(x.float())
    choice = scores if bias is None else scores + bias.float()
    if group_count > 1:
        grouped = choice.unflatten(-1, (group_count, -1))
        by_group = grouped.amax(-1) if group_select_mode == BY_MAXIMUM else grouped.topk(TOP_OF_GROUP, -1)[0].sum(-1)
        kept = torch.zeros_like(by_group, dtype=torch.bool).scatter_(-1, by_group.topk(k_group, -1)[1], True)
        choice = grouped.masked_fill(~kept[..., None], float("-inf")).flatten(-2)
    experts = torch.sort(choice, dim=-1, descending=True, stable=True)[1][:, :k]
    weights = scores.gather(-1, experts)
    if norm_type == SIGMOID:
        weights = weights / (weights.sum(-1, keepdim=True) + epsilon)
    out.copy_(weights * scale)
    expert_out.copy_(experts)
    if wants_scores:
        scores_out.copy_(scores)


@rule("aclnnMoeInitRouting", source=DOCS + "npu_moe_init_routing.md")
def init_routing(
    x: Tensor,
    row_idx: Tensor,
    expert_idx: Tensor,
    active_num: Int,
    expanded_out: Tensor,
    row_out: Tensor,
    expert_out: Tensor,
) -> None:
    """Copies of tokens in the order of their experts; `row_out` says of pair (token, choice) where its copy lies."""
    experts, order = torch.sort(expert_idx.reshape(-1), stable=True)
    rows = row_idx.reshape(-1)[order].long()
    row_out[rows] = torch.arange(rows.numel(), dtype=row_out.dtype)
    expanded_out.copy_(x[rows[: expanded_out.shape[0]] % x.shape[0]])
    expert_out.copy_(experts)


@rule("aclnnMoeInitRoutingV3", source=DOCS + "npu_moe_init_routing_v2.md")
def init_routing_v3(
    x: Tensor,
    expert_idx: Tensor,
    scale: Tensor | None,
    offset: Tensor | None,
    active_num: Int,
    expert_capacity: Int,
    expert_num: Int,
    drop_pad_mode: Int,
    tokens_num_type: Int,
    wants_tokens_num: Bool,
    quant_mode: Int,
    active_range: Ints,
    row_idx_type: Int,
    expanded_out: Tensor,
    row_out: Tensor,
    tokens_out: Tensor,
    scale_out: Tensor | None,
) -> None:
    """As above, for the experts of a range, with the number of tokens of each.

    `row_idx_type` 0: where each pair's copy lies, -1 for none; 1: the pair of each copy. Rows beyond those that are
    copied are left as they were.
    """
    if drop_pad_mode != 0 or quant_mode not in (-1, 1):
        raise ValueError(f"drop_pad_mode {drop_pad_mode} with quant_mode {quant_mode} is not modelled")
    first, end = active_range or (0, expert_num)
    flat = expert_idx.reshape(-1).long()
    is_active = (flat >= first) & (flat < end)
    order = torch.sort(flat.masked_fill(~is_active, torch.iinfo(torch.int64).max), stable=True)[1]
    count = int(is_active.sum())
    _write_rows(row_out, order, count, row_idx_type)
    if wants_tokens_num:
        tokens = torch.bincount(flat[order[:count]] - first, minlength=end - first)
        _write_counts(tokens_out, tokens, tokens_num_type, first)
    copies = min(count, active_num) if active_num > 0 else count
    copied = x[order[:copies] // expert_idx.shape[-1]]
    if quant_mode == -1:
        expanded_out[:copies] = copied
        if scale is not None and scale_out is not None:
            scale_out[:copies] = scale[order[:copies] // expert_idx.shape[-1]].reshape(scale_out[:copies].shape)
        return
    wide = copied.float() if scale is None else copied.float() * _smoothing(scale, flat[order[:copies]] - first)
    row_scale = wide.abs().amax(-1, keepdim=True) / 127
    expanded_out[:copies] = torch.round(wide / row_scale).to(expanded_out.dtype)
    if scale_out is not None:
        scale_out[:copies] = row_scale.reshape(scale_out[:copies].shape)


def _smoothing(scale: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
    return scale if scale.shape[0] == 1 else scale[experts]


def _write_rows(row_out: torch.Tensor, order: torch.Tensor, count: int, row_idx_type: int) -> None:
    if row_idx_type == 1:
        row_out[:count] = order[:count].to(row_out.dtype)
        return
    row_out.fill_(-1)
    row_out[order[:count]] = torch.arange(count, dtype=row_out.dtype)


def _write_counts(out: torch.Tensor, tokens: torch.Tensor, kind: int, first: int) -> None:
    if kind == CUMULATIVE:
        out.copy_(tokens.cumsum(0))
    elif kind == COUNTS:
        out.copy_(tokens)
    elif kind == PAIRS:
        present = tokens.nonzero().flatten()
        out.zero_()
        out[: present.numel()] = torch.stack((present + first, tokens[present]), -1)
    else:
        raise ValueError(f"expert_tokens_num_type {kind} is none of 0, 1, 2")


@rule("aclnnMoeFinalizeRoutingV2", source=DOCS + "npu_moe_finalize_routing.md")
def finalize_routing(
    expanded: Tensor,
    row_idx: Tensor,
    skip1: Tensor | None,
    skip2: Tensor | None,
    bias: Tensor | None,
    scales: Tensor | None,
    expert_idx: Tensor | None,
    drop_pad_mode: Int,
    out: Tensor,
) -> None:
    """out = skips + sum over choices of scale * (copy + bias of its expert); place -1 stands for no copy.

    `drop_pad_mode` 0 and 1 have the places of choice k after those of choice k - 1; 2 and 3 those of a token together.
    """
    rows = out.shape[0]
    choices = row_idx.numel() // rows
    places = row_idx.long().view(choices, rows).t() if drop_pad_mode in (0, 1) else row_idx.long().view(rows, choices)
    copies = expanded.flatten(0, -2).float()[places.clamp(min=0)].masked_fill((places < 0)[..., None], 0.0)
    if bias is not None:
        assert expert_idx is not None, "a bias is that of an expert"
        copies = copies + bias.float()[expert_idx.long()]
    if scales is not None:
        copies = copies * scales.float()[..., None]
    total = copies.sum(1)
    for skip in (skip1, skip2):
        total = total if skip is None else total + skip.float()
    out.copy_(total)


@rule(
    "aclnnMoeComputeExpertTokens",
    source="ops-transformer/moe/moe_compute_expert_tokens/docs/aclnnMoeComputeExpertTokens.md",
)
def compute_expert_tokens(sorted_experts: Tensor, expert_num: Int, out: Tensor) -> None:
    """Of each expert, how many rows belong to it and those before it."""
    out.copy_(torch.bincount(sorted_experts.long(), minlength=expert_num)[:expert_num].cumsum(0))
