"""The linear method of weights in blocks of GGUF: rows of blocks as the file has them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from trunnion.errors import UnsupportedError
from trunnion.interfaces.methods import LinearMethod, LinearShape
from trunnion.interfaces.quantization import GGUFBlocks
from trunnion.interfaces.weights import Placement, add_parameter
from trunnion.ops.gguf_blocks import DENSE_ELEMENTS, block_linear, dequantise_blocks
from trunnion.reference.kept import keep


class GGUFBlockLinearMethod(LinearMethod):
    """`weight` [N, K / 32 * block_bytes] uint8, through `trunnion.ops.gguf_blocks`; it embeds, too."""

    row_multiple = 1
    """The parameter has a multiple of so many rows; those beyond N are zero."""

    def __init__(self, scheme: GGUFBlocks) -> None:
        self.scheme = scheme

    def create(self, layer: nn.Module, shape: LinearShape) -> None:
        rows = -(-shape.out_features // self.row_multiple) * self.row_multiple
        row_bytes = shape.in_features // self.scheme.block * self.scheme.type.block_bytes
        placements = block_placements(self.scheme, shape.placements, shape.prefix)
        add_parameter(layer, "weight", (rows, row_bytes), torch.uint8, placements)
        layer.dense_dtype, layer.num_features = shape.dtype, shape.out_features
        # For `trunnion.reference.memory_profile`.
        layer.get_parameter("weight").trunnion_dense_at_once = DENSE_ELEMENTS  # type: ignore[attr-defined]

    def finalize(self, layer: nn.Module) -> None:
        if layer.keeps_dense_weight:
            dense = dequantise_blocks(layer.get_parameter("weight")[: layer.num_features], self.scheme.type)
            keep(layer, "kept_dense_weight", dense.to(layer.dense_dtype))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return block_linear(x, layer.get_parameter("weight")[: layer.num_features], bias, self.scheme.type)

    def rows(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return dequantise_blocks(layer.get_parameter("weight")[ids], self.scheme.type).to(layer.dense_dtype)

    def dense_weight(self, layer: nn.Module) -> torch.Tensor:
        weight: torch.Tensor = layer.kept_dense_weight
        return weight


def block_placements(scheme: GGUFBlocks, placements: Mapping[str, Placement], prefix: str) -> dict[str, Placement]:
    """Of rows of blocks, from the places of the dense weight.

    Raises:
        UnsupportedError: a cut within a block.
    """
    found = {}
    for part, place in placements.items():
        rows, columns = place.shape
        cuts = [_in_bytes(scheme, cut, columns, prefix) for cut in place.source[1:]]
        full = _in_bytes(scheme, slice(0, columns), columns, prefix).stop
        found[part] = Placement(shape=(rows, full), source=(*place.source[:1], *cuts), target=place.target)
    return found


def _in_bytes(scheme: GGUFBlocks, cut: object, columns: int, prefix: str) -> slice:
    assert isinstance(cut, slice), f"{prefix}: the features of blocks are cut into runs"
    start, stop, _ = cut.indices(columns)
    if start % scheme.block or stop % scheme.block:
        raise UnsupportedError(
            f"{prefix}: input features {start} to {stop} cut blocks of {scheme.block} ({scheme.type.value}); "
            f"choices: a tp_size that divides {columns} into multiples of {scheme.block}, or weights 'auto'"
        )
    return slice(*(bound // scheme.block * scheme.type.block_bytes for bound in (start, stop)))
