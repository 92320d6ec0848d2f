"""The MoE method of an unquantised checkpoint: `w13` and `w2` as they were loaded."""

from __future__ import annotations

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.interfaces.methods import MoEMethod, MoEShape
from trunnion.interfaces.weights import set_placements


class UnquantizedMoEMethod(MoEMethod):
    """Experts in the model's dtype through `fused_experts`."""

    def create(self, layer: nn.Module, shape: MoEShape) -> None:
        sizes = {
            "w13": ((shape.num_experts, 2 * shape.intermediate_size, shape.hidden_size), shape.w13_placements),
            "w2": ((shape.num_experts, shape.hidden_size, shape.intermediate_size), shape.w2_placements),
        }
        for name, (size, placements) in sizes.items():
            weight = nn.Parameter(torch.empty(size, dtype=shape.dtype), requires_grad=False)
            layer.register_parameter(name, weight)
            set_placements(weight, placements)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
    ) -> torch.Tensor:
        return torch.ops.trunnion.fused_experts(x, layer.w13, layer.w2, topk_weights, topk_ids)
