"""The MoE method of an unquantised checkpoint: `w13` and `w2` as they were loaded."""

from __future__ import annotations

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.errors import UnsupportedError
from trunnion.interfaces.methods import ClampedSwiGLU, MoEMethod, MoEShape
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
        swiglu: ClampedSwiGLU | None = layer.swiglu
        activation = () if swiglu is None else (swiglu.alpha, swiglu.limit)
        out: torch.Tensor = torch.ops.trunnion.fused_experts(
            x, layer.w13, layer.w2, topk_weights, topk_ids, *layer.biases(), *activation
        )
        return out


def refuse_biases_and_activations(shape: MoEShape, what: str) -> None:
    """UnsupportedError if experts of `shape` are more than `down(silu(gate(x)) * up(x))`; `what` are their weights."""
    if shape.has_bias:
        raise UnsupportedError(f"{shape.prefix}: experts with biases and {what} weights are not supported")
    if shape.swiglu is not None:
        raise UnsupportedError(f"{shape.prefix}: {shape.swiglu} of experts with {what} weights is not supported")
