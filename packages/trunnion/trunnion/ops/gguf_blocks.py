"""Weights in blocks of GGUF: what their bytes hold, and their product with rows that are quantised to int8 by blocks.

Source: `block_q8_0`, `block_q4_0` and `block_q4_1` of ggml, `ggml-common.h` and `ggml-quants.c`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trunnion.interfaces.quantization import BlockType, GGUFBlocks

LARGEST = 127
"""Of the size of a quantised activation."""
LEAST_SCALE = 1e-12
DENSE_ELEMENTS = 1 << 22
"""Of a weight, made dense at once."""


def split_blocks(blocks: torch.Tensor, kind: BlockType) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """blocks [N, G * block_bytes] uint8 -> values [N, G, 32] float32, scales [N, G] float16, minima likewise or None.

    Values are 0 ... 255 or 0 ... 15: 128 or 8 more than what Q8_0 and Q4_0 multiply by their scale.
    """
    blocks = blocks.unflatten(-1, (-1, kind.block_bytes))
    head = 2 + 2 * kind.has_minima
    numbers = blocks[..., :head].contiguous().view(torch.float16)
    stored = blocks[..., head:].float()
    # Devices without shifts of bytes multiply and round.
    if kind is BlockType.Q8_0:
        negative = (stored / 128).floor()
        values = stored + 128 - 256 * negative
    else:
        upper = (stored / 16).floor()
        # The lower halves of all bytes are the first 16 features.
        values = torch.cat((stored - 16 * upper, upper), -1)
    return values, numbers[..., 0], numbers[..., 1] if kind.has_minima else None


def dequantise_blocks(blocks: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """blocks [N, G * block_bytes] uint8 -> [N, G * 32] float32, exact but for the sum with a minimum."""
    values, scales, minima = split_blocks(blocks, kind)
    if minima is None:
        return ((values - 2 ** (kind.bits - 1)) * scales.float().unsqueeze(-1)).flatten(-2)
    return (values * scales.float().unsqueeze(-1) + minima.float().unsqueeze(-1)).flatten(-2)


def round_by_blocks(x: torch.Tensor) -> torch.Tensor:
    """x [..., K] -> `scale * round(x / scale)` in float32, with a scale per block of 32: its largest size over 127."""
    by_blocks = x.float().unflatten(-1, (-1, GGUFBlocks.block))
    scales = (by_blocks.abs().amax(-1, keepdim=True) / LARGEST).clamp(min=LEAST_SCALE)
    return ((by_blocks / scales).round() * scales).flatten(-2)


def block_linear(x: torch.Tensor, blocks: torch.Tensor, bias: torch.Tensor | None, kind: BlockType) -> torch.Tensor:
    """`round_by_blocks(x) @ dense.T + bias`, summed in float32; the weight is made dense some rows at a time.

    x [..., K], blocks [N, K / 32 * block_bytes] uint8, bias [N] of x's dtype -> [..., N] of x's dtype.
    """
    rounded = round_by_blocks(x)
    at_once = max(1, DENSE_ELEMENTS // x.shape[-1])
    products = [F.linear(rounded, dequantise_blocks(part, kind)) for part in blocks.split(at_once)]
    out = torch.cat(products, -1)
    return (out if bias is None else out + bias.float()).to(x.dtype)
