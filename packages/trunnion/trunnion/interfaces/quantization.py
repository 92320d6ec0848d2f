"""How the weights of one linear layer or block of experts are quantised: what a package's methods are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol

import torch


@dataclass(frozen=True, kw_only=True)
class BlockFP8:
    """Weights in e4m3 with a scale per `block` of rows and columns (DeepSeek-V3, arXiv:2412.19437, 3.3).

    Activations are quantised to e4m3 as they come, with a scale per token and `block[1]` features.
    """

    block: tuple[int, int] = (128, 128)
    scale_name: str = "weight_scale_inv"
    """Of the checkpoint's scales, which multiply whatever their name: `weight_scale_inv` or `weight_scale`."""


class Activations(Enum):
    """Where the scales of the activations come from."""

    TOKEN = "token"
    """Each token has its own, taken when it comes."""
    STATIC = "static"
    """The layer has one, stored in the checkpoint as `input_scale`."""


@dataclass(frozen=True, kw_only=True)
class W8A8:
    """Weights of 8 bits with a scale per row, activations of the same dtype; both symmetric."""

    dtype: torch.dtype
    """int8 or float8_e4m3fn."""
    per_row: bool = True
    """Whether the checkpoint has a scale per row; else one per tensor, which each of its rows gets."""
    activations: Activations = Activations.TOKEN


class IntLayout(Enum):
    """Who wrote the integers of a checkpoint: how they are packed, and what its tensors are called."""

    COMPRESSED = "compressed-tensors"
    """Along the input features, of rows [out, in]: `weight_packed`, `weight_scale`, `weight_zero_point`."""
    AWQ = "awq"
    """Along the output features, of columns [in, out], in an order of its own: `qweight`, `scales`, `qzeros`."""
    GPTQ = "gptq"
    """Along the input features, of columns [in, out], zero points less 1: `qweight`, `scales`, `qzeros`."""
    GPTQ_V2 = "gptq_v2"
    """As GPTQ, zero points as they are."""


@dataclass(frozen=True, kw_only=True)
class GroupedInt:
    """Weights alone, as `(value - zero point) * scale`: values of few bits, activations in the model's dtype."""

    bits: int
    """4 or 8; values and zero points are 0 ... 2 ** bits - 1."""
    group_size: int | None
    """Features of a row that share scale and zero point; None: all of them."""
    has_zero_points: bool
    """Whether the checkpoint has zero points; else each is 2 ** (bits - 1)."""
    is_ordered: bool = False
    """Whether the checkpoint tells the group of each feature (`g_idx`); else groups are runs of neighbours."""
    layout: IntLayout


@dataclass(frozen=True, kw_only=True)
class MXFP4:
    """Weights of experts alone: e2m1, with a scale in e8m0 per row and `block` features (OCP Microscaling Formats 1.0).

    The loader hands a method blocks of 17 bytes: the scale, and the values, of two in a byte the lower half first.
    """

    block: ClassVar[int] = 32


class BlockType(Enum):
    """A storage type of GGUF: blocks of 32 features of a row, each with a scale in float16 in front."""

    Q8_0 = "Q8_0"
    """int8 values."""
    Q4_0 = "Q4_0"
    """Values 0 ... 15, from which 8 is taken."""
    Q4_1 = "Q4_1"
    """Values 0 ... 15, and a minimum in float16 behind the scale, which is added."""

    @property
    def bits(self) -> int:
        """Of a value."""
        return 8 if self is BlockType.Q8_0 else 4

    @property
    def has_minima(self) -> bool:
        """Whether `value * scale` has a minimum added."""
        return self is BlockType.Q4_1

    @property
    def block_bytes(self) -> int:
        """Of a block: its scale, its minimum if it has one, its values."""
        return 2 + 2 * self.has_minima + GGUFBlocks.block * self.bits // 8


@dataclass(frozen=True, kw_only=True)
class GGUFBlocks:
    """Weights in blocks of GGUF, as a file holds them; activations are quantised to int8 by blocks as they come.

    The loader hands a method rows of blocks, uint8. Block by block `x` is replaced by `scale * round(x / scale)`, where
    `scale` is the block's largest size over 127, as llama.cpp does it (it rounds that scale to float16 besides).
    """

    block: ClassVar[int] = 32
    type: BlockType


Scheme = BlockFP8 | W8A8 | GroupedInt | MXFP4 | GGUFBlocks
"""What a checkpoint may hold; an unquantised layer has none (None)."""


class Quantization(Protocol):
    """What a checkpoint says about its layers."""

    def scheme(self, prefix: str) -> Scheme | None:
        """Of the layer or block of experts named `prefix`; None: unquantised.

        Raises:
            UnsupportedError: parts that are one layer here are quantised differently.
        """
        ...

    def embedding_scheme(self, prefix: str) -> GGUFBlocks | None:
        """Of the embedding named `prefix`, whose rows are looked up; None: unquantised."""
        ...
