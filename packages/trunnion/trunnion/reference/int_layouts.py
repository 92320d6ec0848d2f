"""How the integers of each published layout become rows of packed values, scales and zero points for the operators.

Sources: compressed-tensors, compressors/pack_quantized; AutoAWQ, awq/utils/packing_utils.py; AutoGPTQ and GPTQModel,
pack() of their quantised linear layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from trunnion.interfaces.quantization import GroupedInt, IntLayout
from trunnion.interfaces.weights import Recoding
from trunnion.ops.grouped_int import pack, unpack

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Column -> where among the eight of a word AWQ keeps it."""


@dataclass(frozen=True, kw_only=True)
class IntNames:
    """What a layout calls the tensors of a layer."""

    weight: str
    scales: str
    zero_points: str
    groups: str


_GPTQ = IntNames(weight="qweight", scales="scales", zero_points="qzeros", groups="g_idx")
NAMES = {
    IntLayout.COMPRESSED: IntNames(
        weight="weight_packed", scales="weight_scale", zero_points="weight_zero_point", groups="weight_g_idx"
    ),
    IntLayout.AWQ: _GPTQ,
    IntLayout.GPTQ: _GPTQ,
    IntLayout.GPTQ_V2: _GPTQ,
}


def per_word(scheme: GroupedInt) -> int:
    """Values in 32 bits."""
    return 32 // scheme.bits


def weight_recoding(scheme: GroupedInt) -> Recoding:
    """To packed values [rows, columns * bits / 8] uint8."""
    words = per_word(scheme)
    if scheme.layout is IntLayout.COMPRESSED:
        return _of_words(lambda shape: (shape[0], shape[1] // 4), _bytes)
    if scheme.layout is IntLayout.AWQ:
        return _of_words(
            lambda shape: (shape[1] * 2, shape[0] // words), lambda stored: pack(_awq_values(stored).t(), scheme.bits)
        )
    return _of_words(lambda shape: (shape[1] // 4, shape[0]), lambda stored: _bytes(stored.t()))


def scale_recoding(scheme: GroupedInt) -> Recoding | None:
    """To scales [rows, groups]; None where they are stored so."""
    if scheme.layout is IntLayout.COMPRESSED:
        return None
    return Recoding(stored_shape=lambda shape: shape[::-1], dtype=None, decode=torch.t)


def zero_point_recoding(scheme: GroupedInt) -> Recoding:
    """To zero points [rows, groups] uint8."""
    words, bits = per_word(scheme), scheme.bits

    def of_columns(shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[1], shape[0] // words

    if scheme.layout is IntLayout.COMPRESSED:
        return _of_words(
            lambda shape: (shape[0] // words, shape[1]), lambda stored: unpack(_bytes(stored.t()), bits).t()
        )
    if scheme.layout is IntLayout.AWQ:
        return _of_words(of_columns, lambda stored: _awq_values(stored).t())
    if scheme.layout is IntLayout.GPTQ_V2:
        return _of_words(of_columns, lambda stored: unpack(_bytes(stored), bits).t())
    # Of 2 ** bits values the least, less 1, is the largest: all that a quantiser makes come back.
    return _of_words(of_columns, lambda stored: (unpack(_bytes(stored), bits).t() + 1) & (2**bits - 1))


def _of_words(
    stored_shape: Callable[[tuple[int, ...]], tuple[int, ...]], decode: Callable[[torch.Tensor], torch.Tensor]
) -> Recoding:
    return Recoding(stored_shape=stored_shape, dtype=torch.int32, decode=decode)


def _bytes(stored: torch.Tensor) -> torch.Tensor:
    """[..., n] int32 -> [..., 4 * n] uint8, the lowest first."""
    return stored.reshape(-1).view(torch.uint8).view(*stored.shape[:-1], 4 * stored.shape[-1])


def _awq_values(stored: torch.Tensor) -> torch.Tensor:
    """[..., n] int32 -> [..., 8 * n] uint8."""
    return unpack(_bytes(stored), 4).unflatten(-1, (-1, 8))[..., list(AWQ_PLACES)].flatten(-2)
