"""Routers of the reference implementation: which modules they are, and how near each token is to another choice."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def routers(named_modules: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    """Those that choose experts, by name; transformers calls them all `...Router`, whatever the attribute is called."""
    return {name: module for name, module in named_modules if type(module).__name__.endswith("Router")}


def margin(router: nn.Module, logits: torch.Tensor) -> torch.Tensor:
    """[tokens] of logits [tokens, experts]: between the last expert chosen and the first one not chosen.

    With groups it is the smaller one of this and the same of groups. A router with a bias for its choice takes the
    sigmoid and adds the bias, and a group counts for its two best experts; without, a group counts for its best one.
    """
    scores, gap, best_of_group = logits.float(), torch.tensor(torch.inf), 1
    bias = getattr(router, "e_score_correction_bias", None)
    if bias is not None:
        scores, best_of_group = scores.sigmoid() + bias.float(), 2
    if _has_groups(router):
        grouped = scores.unflatten(-1, (router.num_group, -1))  # [tokens, groups, experts of a group]
        by_group = grouped.topk(best_of_group, dim=-1).values.sum(-1)
        best = by_group.topk(router.topk_group + 1, dim=-1).values
        gap = best[:, -2] - best[:, -1]
        scores = grouped.masked_fill((by_group < best[:, -2:-1]).unsqueeze(-1), -torch.inf).flatten(1)
    experts = scores.topk(router.top_k + 1, dim=-1).values
    return torch.minimum(gap, experts[:, -2] - experts[:, -1])


def _has_groups(router: nn.Module) -> bool:
    if getattr(router, "topk_method", "group_limited_greedy") != "group_limited_greedy":
        return False
    return getattr(router, "topk_group", None) not in (None, getattr(router, "num_group", None))
