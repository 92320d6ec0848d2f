"""Routers of the reference implementation: which modules they are, and how near each token is to another choice."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from transformers import PreTrainedModel

NEAR = 4.0
"""A margin is near to nothing within as many times what rounding does to scores: it lies between two of them, and two
implementations round."""


def routers(named_modules: Iterable[tuple[str, nn.Module]]) -> dict[str, nn.Module]:
    """Those that choose experts, by name; transformers calls them all `...Router`, whatever the attribute is called."""
    return {name: module for name, module in named_modules if type(module).__name__.endswith("Router")}


def margin(router: nn.Module, logits: torch.Tensor) -> torch.Tensor:
    """[tokens] of logits [tokens, experts]: between the last expert chosen and the first one not chosen.

    With groups it is the smaller one of this and the same of groups. A router with a bias for its choice takes the
    sigmoid and adds the bias, and a group counts for its two best experts; without, a group counts for its best one.
    """
    scores, gap = _scores(router, logits), torch.tensor(torch.inf)
    if _has_groups(router):
        best_of_group = 2 if hasattr(router, "e_score_correction_bias") else 1
        grouped = scores.unflatten(-1, (router.num_group, -1))  # [tokens, groups, experts of a group]
        by_group = grouped.topk(best_of_group, dim=-1).values.sum(-1)
        best = by_group.topk(router.topk_group + 1, dim=-1).values
        gap = best[:, -2] - best[:, -1]
        scores = grouped.masked_fill((by_group < best[:, -2:-1]).unsqueeze(-1), -torch.inf).flatten(1)
    experts = scores.topk(router.top_k + 1, dim=-1).values
    return torch.minimum(gap, experts[:, -2] - experts[:, -1])


@torch.inference_mode()
def near_ties(exact: PreTrainedModel, rounded: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """[sequences, tokens] bool: where rounding decides, some router being near to another choice.

    `rounded` are the weights of `exact` in a narrower dtype; ids [sequences, tokens].
    """
    near = torch.zeros(ids.shape, dtype=torch.bool)
    for (router, fine), (_, coarse) in zip(_run(exact, ids), _run(rounded, ids), strict=True):
        rounding = (_scores(router, fine) - _scores(router, coarse)).abs().amax(-1)
        near |= (margin(router, fine) < NEAR * rounding).view(ids.shape)
    return near


def _run(model: PreTrainedModel, ids: torch.Tensor) -> list[tuple[nn.Module, torch.Tensor]]:
    """The routers of `model` with their logits [tokens, experts], in the order in which they run."""
    seen: list[tuple[nn.Module, torch.Tensor]] = []

    def record(module: nn.Module, _inputs: object, output: tuple[torch.Tensor, ...]) -> None:
        seen.append((module, output[0]))

    hooks = [router.register_forward_hook(record) for router in routers(model.named_modules()).values()]
    if hooks:
        model(ids, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen


def _scores(router: nn.Module, logits: torch.Tensor) -> torch.Tensor:
    """What the router chooses by."""
    bias = getattr(router, "e_score_correction_bias", None)
    return logits.float() if bias is None else logits.float().sigmoid() + bias.float()


def _has_groups(router: nn.Module) -> bool:
    if getattr(router, "topk_method", "group_limited_greedy") != "group_limited_greedy":
        return False
    return getattr(router, "topk_group", None) not in (None, getattr(router, "num_group", None))
