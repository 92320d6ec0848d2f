"""The MoE method of MXFP4 checkpoints: experts made dense while they are loaded, one after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch
from torch import nn

from trunnion.errors import UnsupportedError, WeightsError
from trunnion.interfaces.methods import MoEShape
from trunnion.interfaces.quantization import MXFP4
from trunnion.interfaces.weights import Placement, Recoding
from trunnion.reference.moe_method import UnquantizedMoEMethod
from trunnion.reference.packed_placements import recoded

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of e2m1, by its three lower bits; the fourth is the sign."""
BIAS = 127
"""Of e8m0: the exponent that is stored as 0 is -127."""
LARGEST_SCALE = 252
"""Beyond it 6 times the scale is no float32, or the scale is NaN (255)."""


class MXFP4MoEMethod(UnquantizedMoEMethod):
    """`w13` and `w2` in the model's dtype, through `fused_experts`: after loading nothing is of 4 bits."""

    def create(self, layer: nn.Module, shape: MoEShape) -> None:
        for name, placements in (("w13", shape.w13_placements), ("w2", shape.w2_placements)):
            _check_blocks(placements, f"{shape.prefix}.{name}")
        w13, w2 = (recoded(placements, RECODING) for placements in (shape.w13_placements, shape.w2_placements))
        super().create(layer, dataclasses.replace(shape, w13_placements=w13, w2_placements=w2))


def decode(stored: torch.Tensor) -> torch.Tensor:
    """[R, G, 17] uint8, scale and 16 bytes of two values each, the lower half first -> [R, 32 * G] bfloat16, exact.

    Raises:
        WeightsError: a scale is NaN, or so large that values are not finite.
    """
    scales, pairs = stored[..., 0].long(), stored[..., 1:].long()
    if bool((scales > LARGEST_SCALE).any()):
        raise WeightsError(
            f"a scale of MXFP4 is stored as {int(scales.max())}; choices: 0 ... {LARGEST_SCALE}, for 2 ** -127 and on"
        )
    values = torch.tensor((*MAGNITUDES, *(-value for value in MAGNITUDES)), dtype=torch.bfloat16)
    byte = torch.arange(256)
    both = torch.stack((values[byte % 16], values[byte // 16]), -1)  # [256, 2]
    powers = torch.tensor([2.0 ** (scale - BIAS) for scale in range(LARGEST_SCALE + 1)], dtype=torch.bfloat16)
    dense = both[pairs].flatten(-2)  # [R, G, 32]
    return dense.mul_(powers[scales].unsqueeze(-1)).flatten(-2)


RECODING = Recoding(
    stored_shape=lambda shape: (*shape[:-1], shape[-1] // MXFP4.block, 1 + MXFP4.block // 2),
    dtype=torch.uint8,
    decode=decode,
    by_rows=True,
)


def _check_blocks(placements: Mapping[str, Placement], prefix: str) -> None:
    for part, place in placements.items():
        if place.shape[1] % MXFP4.block:
            raise UnsupportedError(
                f"{prefix}[{part}]: in_features {place.shape[1]} do not fill blocks of MXFP4; "
                f"choices: multiples of {MXFP4.block}"
            )
