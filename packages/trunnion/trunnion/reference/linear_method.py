"""The linear method of an unquantised checkpoint: one weight, `[out_features, in_features]`, as it was loaded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.interfaces.methods import LinearMethod, LinearShape
from trunnion.interfaces.weights import set_placements


class UnquantizedLinearMethod(LinearMethod):
    """`x @ weight.T + bias` in the model's dtype."""

    def create(self, layer: nn.Module, shape: LinearShape) -> None:
        weight = torch.empty(shape.out_features, shape.in_features, dtype=shape.dtype)
        layer.register_parameter("weight", nn.Parameter(weight, requires_grad=False))
        set_placements(layer.weight, shape.placements)

    def dense_weight(self, layer: nn.Module) -> torch.Tensor:
        weight: torch.Tensor = layer.weight
        return weight

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return F.linear(x, layer.weight, bias)
