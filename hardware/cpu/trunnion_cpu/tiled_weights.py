"""Weights alone in 4 or 8 bits, in tiles that native products read, in the place of the loaded ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.ops.grouped_int import unpack
from trunnion.reference.grouped_int_methods import GroupedIntLinearMethod
from trunnion_cpu.kernels.native import DTYPES

TILE = 16
"""Features side by side."""
PARAMETERS = "tiled_parameters"
"""Attribute of a layer: its parameters that hold tiles, by name. A reload brings others."""
ISAS_OF_PAIRS = ("avx512_bf16",)
"""Sets of kernels that multiply pairs of bfloat16, which read tiles faster than weights as they were loaded."""
CHUNK_VALUES = 8
"""Rows of codes are padded to whole chunks: of 8 values in 4 bits, and so of 4 in 8 bits."""


def why_not_tiled(dtype: torch.dtype, out_features: int, in_features: int) -> str | None:
    """Why a weight of this size is not laid out in tiles for a model in `dtype`, or None."""
    if dtype not in DTYPES:
        return f"{dtype} is neither float32 nor bfloat16"
    if out_features % TILE or in_features % CHUNK_VALUES:
        return f"a weight of [{out_features}, {in_features}] is not made of tiles of {TILE} by {CHUNK_VALUES}"
    return None


def tiles_of(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """packed [N, K * bits / 8] uint8 -> [ceil(N / 16), 2 * bits * ceil8(K)] uint8, as `csrc/kernels/tiled.cc` has it.

    A chunk holds, feature after feature, 4 values of 8 bits, or 4 in the lower halves of bytes and 4 in the upper ones.
    """
    values = unpack(packed, bits)
    values = F.pad(values, (0, -values.shape[1] % CHUNK_VALUES, 0, -values.shape[0] % TILE))
    if bits == 4:
        lower, upper = values.unflatten(1, (-1, 2, 4)).unbind(2)
        values = (lower | upper << 4).flatten(1)
    return values.unflatten(0, (-1, TILE)).unflatten(2, (-1, 4)).transpose(1, 2).flatten(1).contiguous()


def per_tile(groups: torch.Tensor) -> torch.Tensor:
    """groups [N, G] -> [ceil(N / 16), G, 16]."""
    return F.pad(groups, (0, 0, 0, -groups.shape[0] % TILE)).unflatten(0, (-1, TILE)).transpose(1, 2).contiguous()


def num_tiled_layers(model: object, *, quantises_rows: bool) -> int:
    """Layers of `model` whose weights lie in tiles, and whose rows are quantised on the way, or not."""
    if not isinstance(model, nn.Module):
        return 0
    tiled = (layer.method for layer in model.modules() if PARAMETERS in layer.__dict__)
    return sum(isinstance(method, TiledIntLinearMethod) == quantises_rows for method in tiled)


class TiledGroupedLinearMethod(GroupedIntLinearMethod):
    """As the reference's, of the same numbers, in bfloat16.

    Tiles take the place of what was loaded, and keep it across reloads. Layers that `why_not` names keep what was
    loaded, and are the reference's.
    """

    def why_not(self, dtype: torch.dtype, out_features: int, in_features: int) -> str | None:
        """As `why_not_tiled`."""
        if dtype != torch.bfloat16:
            return f"{dtype} is not bfloat16"
        return why_not_tiled(dtype, out_features, in_features)

    def finalize(self, layer: nn.Module) -> None:
        weight = layer.get_parameter(self.names.weight)
        if layer.__dict__.get(PARAMETERS, {}).get(self.names.weight) is weight:
            # Not loaded since.
            return
        super().finalize(layer)
        bits, (out_features, row_bytes) = self.scheme.bits, weight.shape
        if self.why_not(layer.dense_dtype, out_features, row_bytes * 8 // bits) is not None:
            return
        lay_out(layer, self.names.weight, tiles_of(weight.data, bits))
        lay_out(layer, self.names.scales, per_tile(layer.get_parameter(self.names.scales).data))
        if self.scheme.has_zero_points:
            lay_out(layer, self.names.zero_points, per_tile(layer.get_parameter(self.names.zero_points).data))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if PARAMETERS not in layer.__dict__:
            return super().apply(layer, x, bias)
        if layer.feature_order is not None:
            x = x.index_select(-1, layer.feature_order)
        codes, scales, zero_points = self._operands(layer)
        features, groups = scales.shape
        tiled = (features // TILE, groups, TILE)
        zero_points = None if zero_points is None else zero_points.view(tiled)
        codes = codes.view(features // TILE, -1)
        return self.multiply(layer, x, codes, scales.view(tiled), zero_points, bias)

    def multiply(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zero_points: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        """x [..., K], codes as `tiles_of`, scales and zero points as `per_tile` -> [..., N]."""
        bits, features = self.scheme.bits, scales.shape[0] * TILE
        out: torch.Tensor = torch.ops.trunnion_cpu.tiled_grouped_linear(
            x, codes, scales, zero_points, bias, bits, layer.int_group_size, features
        )
        return out


class TiledIntLinearMethod(TiledGroupedLinearMethod):
    """With rows quantised to int8 by blocks of a group's features, 128 at most, on the way; in float32, too.

    Products are those of the reference with `x` replaced by `scale * round(x / scale)`, where `scale` is a block's
    largest size over 127.
    """

    def why_not(self, dtype: torch.dtype, out_features: int, in_features: int) -> str | None:
        return why_not_tiled(dtype, out_features, in_features)

    def multiply(
        self,
        layer: nn.Module,
        x: torch.Tensor,
        codes: torch.Tensor,
        scales: torch.Tensor,
        zero_points: torch.Tensor | None,
        bias: torch.Tensor | None,
    ) -> torch.Tensor:
        bits, features = self.scheme.bits, scales.shape[0] * TILE
        out: torch.Tensor = torch.ops.trunnion_cpu.tiled_int_linear(
            x, codes, scales, zero_points, None, bias, bits, layer.int_group_size, features
        )
        return out


def lay_out(layer: nn.Module, name: str, fresh: torch.Tensor, attribute: str = PARAMETERS) -> None:
    """Put `fresh` where the first one lies, in the shape of the parameter, which the loader goes by.

    `attribute` of the layer says by name which of its parameters hold tiles.
    """
    laid_out = layer.__dict__.setdefault(attribute, {})
    parameter = layer.get_parameter(name)
    place = laid_out.get(name, parameter).data
    place.copy_(fresh.view(place.shape))
    parameter.data = place
    laid_out[name] = parameter
