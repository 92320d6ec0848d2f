"""MoE methods of quantised checkpoints: weights and scales as they were loaded, products by the operators."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.errors import UnsupportedError
from trunnion.interfaces.methods import MoEMethod, MoEShape
from trunnion.interfaces.quantization import W8A8, Activations, BlockFP8
from trunnion.interfaces.weights import Placement, add_parameter
from trunnion.reference.moe_method import refuse_biases_and_activations
from trunnion.reference.scale_placements import block_scales, row_scales


class BlockFP8MoEMethod(MoEMethod):
    """`w13` and `w2` in e4m3 with scales per block, through `block_fp8_experts`."""

    def __init__(self, scheme: BlockFP8) -> None:
        self.scheme = scheme

    def create(self, layer: nn.Module, shape: MoEShape) -> None:
        refuse_biases_and_activations(shape, "FP8 block")
        blocks = {}
        for name, (size, placements) in _weights(shape).items():
            add_parameter(layer, name, (shape.num_experts, *size), torch.float8_e4m3fn, placements)
            blocks[name] = block_scales(placements, size, self.scheme.block, f"{shape.prefix}.{name}", stacked=1)
            scale_shape = (shape.num_experts, *blocks[name].shape)
            add_parameter(layer, self._scale_name(name), scale_shape, torch.float32, blocks[name].placements)
        # The hidden features are never cut.
        assert blocks["w13"].columns == self.scheme.block[1] and blocks["w2"].rows == self.scheme.block[0]
        layer.w13_scale_rows, layer.w2_scale_columns = blocks["w13"].rows, blocks["w2"].columns

    def apply(
        self, layer: nn.Module, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
    ) -> torch.Tensor:
        w13_scale, w2_scale = (getattr(layer, self._scale_name(name)) for name in ("w13", "w2"))
        out: torch.Tensor = torch.ops.trunnion.block_fp8_experts(
            x, layer.w13, w13_scale, layer.w2, w2_scale, topk_weights, topk_ids,
            layer.w13_scale_rows, layer.w2_scale_columns,
        )  # fmt: skip
        return out

    def _scale_name(self, weight: str) -> str:
        return f"{weight}_{self.scheme.scale_name}"


class W8A8MoEMethod(MoEMethod):
    """`w13` and `w2` of 8 bits with a scale per row, activations per token, through `w8a8_experts`."""

    def __init__(self, scheme: W8A8) -> None:
        self.scheme = scheme

    def create(self, layer: nn.Module, shape: MoEShape) -> None:
        refuse_biases_and_activations(shape, "8-bit")
        if self.scheme.activations is not Activations.TOKEN:
            raise UnsupportedError(
                f"{shape.prefix}: activations of experts with static scales are not supported; choices: dynamic"
            )
        for name, (size, placements) in _weights(shape).items():
            add_parameter(layer, name, (shape.num_experts, *size), self.scheme.dtype, placements)
            places = row_scales(placements, per_row=self.scheme.per_row, stacked=1)
            add_parameter(layer, f"{name}_weight_scale", (shape.num_experts, size[0]), torch.float32, places)

    def apply(
        self, layer: nn.Module, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
    ) -> torch.Tensor:
        out: torch.Tensor = torch.ops.trunnion.w8a8_experts(
            x, layer.w13, layer.w13_weight_scale, layer.w2, layer.w2_weight_scale, topk_weights, topk_ids
        )
        return out


def _weights(shape: MoEShape) -> dict[str, tuple[tuple[int, int], Mapping[str, Placement]]]:
    hidden, inner = shape.hidden_size, shape.intermediate_size
    return {"w13": ((2 * inner, hidden), shape.w13_placements), "w2": ((hidden, inner), shape.w2_placements)}
