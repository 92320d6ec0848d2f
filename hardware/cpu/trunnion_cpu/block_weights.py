"""Weights in blocks of GGUF, in tiles that native products with int8 rows read, in the place of the loaded ones."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.interfaces.quantization import BlockType, GGUFBlocks
from trunnion.ops.gguf_blocks import split_blocks
from trunnion.ops.grouped_int import pack
from trunnion.reference.gguf_block_method import GGUFBlockLinearMethod
from trunnion_cpu.kernels.native import DTYPES
from trunnion_cpu.tiled_weights import TILE, lay_out, per_tile, tiles_of

PARAMETERS = "tiled_block_parameters"
"""Attribute of a layer: its parameter that holds tiles, by name. A reload brings another."""

ROWS_AT_ONCE = 4096
"""That are laid out anew together, a multiple of TILE: what is needed beside the weight is bounded."""


def in_tiles(blocks: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """blocks [N, G * block_bytes] uint8, N a multiple of 16 -> the same bytes in the order that `block_linear` reads.

    All codes in tiles, then all scales, then all minima (`csrc/kernels/blocks.cc`).
    """
    rows, row_bytes = blocks.shape
    groups = row_bytes // kind.block_bytes
    fresh = torch.empty(rows * row_bytes, dtype=torch.uint8)
    sizes = (groups * GGUFBlocks.block * kind.bits // 8, *[2 * groups] * (1 + kind.has_minima))
    places = fresh.split([rows * size for size in sizes])
    for first in range(0, rows, ROWS_AT_ONCE):
        values, *numbers = split_blocks(blocks[first : first + ROWS_AT_ONCE], kind)
        codes = tiles_of(pack(values.flatten(1), kind.bits), kind.bits)
        found = (codes, *(per_tile(number).view(torch.uint8) for number in numbers if number is not None))
        for place, size, part in zip(places, sizes, found, strict=True):
            place[first * size :][: part.numel()] = part.flatten()
    return fresh.view(blocks.shape)


def num_tiled_block_layers(model: object) -> int:
    """Layers of `model` whose blocks lie in tiles."""
    return sum(PARAMETERS in layer.__dict__ for layer in model.modules()) if isinstance(model, nn.Module) else 0


class TiledBlockLinearMethod(GGUFBlockLinearMethod):
    """As the reference's, by native operators; tiles take the place of what was loaded, and keep it across reloads.

    Layers in other dtypes than float32 and bfloat16 keep their blocks, and are the reference's.
    """

    row_multiple = TILE

    def finalize(self, layer: nn.Module) -> None:
        weight = layer.get_parameter("weight")
        if layer.__dict__.get(PARAMETERS, {}).get("weight") is weight:
            # Not loaded since.
            return
        super().finalize(layer)
        if layer.dense_dtype in DTYPES:
            lay_out(layer, "weight", in_tiles(weight.data, self.scheme.type), PARAMETERS)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        if PARAMETERS not in layer.__dict__:
            return super().apply(layer, x, bias)
        kind = self.scheme.type
        out: torch.Tensor = torch.ops.trunnion_cpu.block_linear(
            x, layer.weight, bias, kind.bits, kind.has_minima, layer.num_features
        )
        return out

    def rows(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        if PARAMETERS not in layer.__dict__:
            return super().rows(layer, ids)
        kind = self.scheme.type
        out: torch.Tensor = torch.ops.trunnion_cpu.block_rows(
            ids, layer.weight, kind.bits, kind.has_minima, layer.num_features, layer.dense_dtype
        )
        return out
