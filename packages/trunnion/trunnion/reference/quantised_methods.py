"""Linear methods of quantised checkpoints: weights and scales as they were loaded, products by the operators."""

from __future__ import annotations

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.interfaces.methods import LinearMethod, LinearShape
from trunnion.interfaces.quantization import W8A8, Activations, BlockFP8
from trunnion.interfaces.weights import Placement, set_placements
from trunnion.ops.quantised import dequantise_blocks, dequantise_rows
from trunnion.reference.kept import keep
from trunnion.reference.scale_placements import block_scales, row_scales


class BlockFP8LinearMethod(LinearMethod):
    """`weight` [N, K] e4m3 and its scales, through `block_fp8_linear`."""

    def __init__(self, scheme: BlockFP8) -> None:
        self.scheme = scheme

    def create(self, layer: nn.Module, shape: LinearShape) -> None:
        size = shape.out_features, shape.in_features
        scales = block_scales(shape.placements, size, self.scheme.block, shape.prefix)
        weight = _register(layer, "weight", size, torch.float8_e4m3fn)
        set_placements(weight, shape.placements)
        set_placements(_register(layer, self.scheme.scale_name, scales.shape, torch.float32), scales.placements)
        layer.scale_rows, layer.scale_columns = scales.rows, scales.columns
        layer.dense_dtype = shape.dtype

    def finalize(self, layer: nn.Module) -> None:
        if layer.keeps_dense_weight:
            scale = getattr(layer, self.scheme.scale_name)
            _keep_dense(layer, dequantise_blocks(layer.weight, scale, layer.scale_rows, layer.scale_columns))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        scale = getattr(layer, self.scheme.scale_name)
        out: torch.Tensor = torch.ops.trunnion.block_fp8_linear(
            x, layer.weight, scale, bias, layer.scale_rows, layer.scale_columns
        )
        return out

    def dense_weight(self, layer: nn.Module) -> torch.Tensor:
        weight: torch.Tensor = layer.kept_dense_weight
        return weight


class W8A8LinearMethod(LinearMethod):
    """`weight` [N, K] of 8 bits, `weight_scale` [N], and `input_scale` where it is static, through `w8a8_linear`.

    The parts of a fused layer read the same input: where their input scales differ, the largest serves all.
    """

    def __init__(self, scheme: W8A8) -> None:
        self.scheme = scheme

    def create(self, layer: nn.Module, shape: LinearShape) -> None:
        weight = _register(layer, "weight", (shape.out_features, shape.in_features), self.scheme.dtype)
        set_placements(weight, shape.placements)
        scale = _register(layer, "weight_scale", (shape.out_features,), torch.float32)
        set_placements(scale, row_scales(shape.placements, per_row=self.scheme.per_row))
        layer.dense_dtype = shape.dtype
        layer.register_buffer("activation_scale", None, persistent=False)
        if self.scheme.activations is Activations.STATIC:
            inputs = _register(layer, "input_scale", (len(shape.placements),), torch.float32)
            set_placements(
                inputs,
                {
                    part: Placement(shape=(), target=(slice(index, index + 1),), loose=True)
                    for index, part in enumerate(shape.placements)
                },
            )

    def finalize(self, layer: nn.Module) -> None:
        if layer.keeps_dense_weight:
            _keep_dense(layer, dequantise_rows(layer.weight, layer.weight_scale))
        self.keep_input_scale(layer)

    def keep_input_scale(self, layer: nn.Module) -> None:
        """One scale for all parts of the layer, where activations have static ones."""
        if self.scheme.activations is Activations.STATIC:
            keep(layer, "activation_scale", layer.input_scale.amax(0, keepdim=True))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out: torch.Tensor = torch.ops.trunnion.w8a8_linear(
            x, layer.weight, layer.weight_scale, layer.activation_scale, bias
        )
        return out

    def dense_weight(self, layer: nn.Module) -> torch.Tensor:
        weight: torch.Tensor = layer.kept_dense_weight
        return weight


def _register(layer: nn.Module, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    parameter = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)
    layer.register_parameter(name, parameter)
    return parameter


def _keep_dense(layer: nn.Module, weight: torch.Tensor) -> None:
    keep(layer, "kept_dense_weight", weight.to(layer.dense_dtype))
