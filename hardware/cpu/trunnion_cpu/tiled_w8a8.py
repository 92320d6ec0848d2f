"""Weights and activations in int8: weights in tiles that native products read, in the place of the loaded ones."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.reference.quantised_methods import W8A8LinearMethod
from trunnion_cpu.kernels.native import DTYPES
from trunnion_cpu.tiled_weights import CHUNK_VALUES, TILE, lay_out, tiles_of

PARAMETERS = "tiled_w8a8_parameters"
"""Attribute of a layer: its parameter that holds tiles, by name. A reload brings another."""
MOST_FEATURES = 1 << 16
"""Of a row: sums of its products stay within 32 bits."""


def why_not_tiled(dtype: torch.dtype, weight: torch.Tensor) -> str | None:
    """Why a weight [N, K] is not laid out in tiles for a model in `dtype`, or None."""
    if dtype not in DTYPES:
        return f"{dtype} is neither float32 nor bfloat16"
    if weight.dtype != torch.int8:
        return f"weights in {weight.dtype}"
    out_features, in_features = weight.shape
    if out_features % TILE or in_features % CHUNK_VALUES or in_features > MOST_FEATURES:
        return f"a weight of {[out_features, in_features]} is not made of tiles of {TILE} by {CHUNK_VALUES}"
    return None


def byte_tiles_of(weight: torch.Tensor) -> torch.Tensor:
    """weight [N, K] int8 -> [N, K] int8, whose bytes are those of tiles (`csrc/kernels/tiled.cc`) of values + 128."""
    return tiles_of(weight.view(torch.uint8) ^ 128, 8).view(torch.int8).view(weight.shape)


def num_tiled_w8a8_layers(model: object) -> int:
    """Layers of `model` whose weights lie in tiles."""
    return sum(PARAMETERS in layer.__dict__ for layer in model.modules()) if isinstance(model, nn.Module) else 0


class TiledW8A8LinearMethod(W8A8LinearMethod):
    """As the reference's, of the same numbers. Tiles take the place of what was loaded, and keep it across reloads.

    Layers that `why_not_tiled` names keep what was loaded, and are the reference's.
    """

    def finalize(self, layer: nn.Module) -> None:
        weight = layer.get_parameter("weight")
        if layer.__dict__.get(PARAMETERS, {}).get("weight") is weight:
            # Not loaded since; its scales may have been.
            return self.keep_input_scale(layer)
        super().finalize(layer)
        if why_not_tiled(layer.dense_dtype, weight) is None:
            lay_out(layer, "weight", byte_tiles_of(weight.data), PARAMETERS)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if PARAMETERS not in layer.__dict__:
            return super().apply(layer, x, bias)
        out: torch.Tensor = torch.ops.trunnion_cpu.tiled_w8a8_linear(
            x, layer.weight, layer.weight_scale, layer.activation_scale, bias
        )
        return out
