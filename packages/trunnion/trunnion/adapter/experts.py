"""Experts of an adapted model on our operator where they are of the plain kind, else as transformers has them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)

NAME = "trunnion"
"""The adapter's name among transformers' implementations of experts."""
OTHERS = "grouped_mm"
"""What runs experts that our operator does not: transformers' own, without a look at a value."""


def register() -> None:
    """Make `NAME` known to transformers; doing so again changes nothing."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    ALL_EXPERTS_FUNCTIONS.register(NAME, run_experts)


def run_experts(
    module: Any, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """hidden_states [T, H], top_k_index and top_k_weights [T, k] -> [T, H]."""
    if hidden_states.is_meta:
        return torch.empty_like(hidden_states)
    if is_plain(module):
        return torch.ops.trunnion.fused_experts(
            hidden_states, module.gate_up_proj, module.down_proj, top_k_weights.float(), top_k_index.long()
        )
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    result: torch.Tensor = ALL_EXPERTS_FUNCTIONS[OTHERS](module, hidden_states, top_k_index, top_k_weights)
    return result


def notes(model: nn.Module) -> list[str]:
    """What runs the blocks of experts, if there are any: a line for the load's report."""
    plain = [is_plain(module) for module in model.modules() if hasattr(module, "has_post_expert_norm")]
    if not plain:
        return []
    return [
        f"adapter: {sum(plain)} of {len(plain)} blocks of experts run on this repository's operator, "
        f"the others on transformers' {OTHERS}"
    ]


def widest_row(model: nn.Module) -> int:
    """Features of a token in the widest block of experts that computes all of them for every token; 0 without one.

    Such a block is none of transformers' experts with a choice of implementations, and holds its weights in one tensor.
    """
    blocks = (module for module in model.modules() if not hasattr(module, "has_post_expert_norm"))
    weights = (each for module in blocks for each in module.parameters(recurse=False) if each.dim() == 3)
    return max((weight.shape[0] * max(weight.shape[1:]) for weight in weights), default=0)


def is_plain(module: Any) -> bool:
    """SiLU of the first half times the second, without biases, norms or another layout."""
    from transformers.activations import SiLUActivation
    from transformers.integrations.moe import _default_apply_gate

    return (
        module.has_gate
        and module.is_concatenated
        and not (module.has_bias or module.is_transposed or module.has_post_expert_norm)
        and type(module)._apply_gate is _default_apply_gate
        and isinstance(getattr(module, "act_fn", None), nn.SiLU | SiLUActivation)
    )
