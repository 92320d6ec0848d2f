"""Quantising activations, and products of integers."""

from __future__ import annotations

import struct

import torch

from ascend_simulator.formats import FRACTAL_NZ
from ascend_simulator.rules import Bool, Dtype, Int, Int32, Raw, Tensor, Text, rule

MATMUL = "ops-nn/matmul/quant_batch_matmul_v4/docs/aclnnQuantMatmulV5.md"
WEIGHT_MATMUL = "ops-nn/matmul/weight_quant_batch_matmul_v2/docs/aclnnWeightQuantBatchMatmulV2.md"
DYNAMIC = "ops-nn/quant/dynamic_quant_v2/docs/aclnnDynamicQuantV2.md"
FP19_BITS = 0xFFFFE000
SCALE_FLAG = 1 << 46
LARGEST = {torch.int8: 127.0}


def dynamically_quantised(
    x: torch.Tensor, smooth: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each row divided by its scale, the largest magnitude over what the dtype holds; rounded, halves to even."""
    if dtype not in LARGEST:
        raise ValueError(f"quantisation to {dtype} is not modelled, only to int8")
    wide = x.float() if smooth is None else x.float() * smooth.float()
    scale = wide.abs().amax(-1, keepdim=True) / LARGEST[dtype]
    return torch.round(wide / scale).nan_to_num(0.0).to(dtype), scale.squeeze(-1)


@rule("aclnnDynamicQuant", source="ops-nn/quant/dynamic_quant/docs/aclnnDynamicQuant.md")
def dynamic_quant(x: Tensor, smooth: Tensor | None, out: Tensor, scale_out: Tensor) -> None:
    values, scale = dynamically_quantised(x, smooth, out.dtype)
    out.copy_(values)
    scale_out.copy_(scale)


@rule("aclnnDynamicQuantV2", source=DYNAMIC)
def dynamic_quant_v2(
    x: Tensor,
    smooth: Tensor | None,
    group_index: Tensor | None,
    dtype: Int32,
    out: Tensor,
    scale_out: Tensor,
    offset_out: Tensor | None,
) -> None:
    """With `group_index`, row g of `smooth` is for the rows up to the index of group g. No offset: symmetric."""
    if offset_out is not None:
        raise ValueError("asymmetric quantisation is not modelled")
    if group_index is not None and smooth is not None:
        ends = group_index.long()
        smooth = smooth.repeat_interleave(ends - torch.cat((ends.new_zeros(1), ends[:-1])), 0)
    values, scale = dynamically_quantised(x, smooth, out.dtype)
    out.copy_(values)
    scale_out.copy_(scale)


@rule("aclnnQuantize", source="ops-nn/quant/quantize/docs/aclnnQuantize.md")
def quantize_by_division(
    x: Tensor, scales: Tensor, zero_points: Tensor | None, dtype: Dtype, axis: Int32, out: Tensor
) -> None:
    """round(x / scales + zero_points), within what the dtype holds; scales are one, or one for each along `axis`."""
    if x.dtype not in (torch.float32, scales.dtype):
        raise ValueError(f"scales of {scales.dtype} for {x.dtype}")
    sizes = [-1 if dim == axis % x.dim() else 1 for dim in range(x.dim())]
    values = x.float() / scales.float().view(sizes)
    if zero_points is not None:
        values = values + zero_points.float().view(sizes)
    limits = torch.iinfo(dtype)
    out.copy_(torch.round(values).clamp(limits.min, limits.max))


@rule("aclnnAscendQuantV3", source="ops-nn/quant/ascend_quant_v2/docs/aclnnAscendQuantV3.md")
def quantize(
    x: Tensor,
    scale: Tensor,
    offset: Tensor | None,
    sqrt_mode: Bool,
    round_mode: Text,
    dtype: Int32,
    axis: Int32,
    out: Tensor,
) -> None:
    """round(x * scale + offset), within what the dtype holds; the scale is applied twice in `sqrt_mode`."""
    if round_mode not in ("round", ""):
        raise ValueError(f"round_mode {round_mode!r} is not modelled, only 'round'")
    factor = scale.float().square() if sqrt_mode else scale.float()
    values = x.float() * factor + (0.0 if offset is None else offset.float())
    limits = torch.iinfo(out.dtype)
    out.copy_(torch.round(values).clamp(limits.min, limits.max))


@rule("aclnnTransQuantParamV2", source="ops-nn/quant/trans_quant_param_v2/docs/aclnnTransQuantParamV2.md")
def pack_scale(scale: Tensor, offset: Tensor | None, out: Tensor) -> None:
    """The upper 19 bits of a float32 in the lower half of 64, flag 46, and an offset of 9 bits from bit 37."""
    words = [
        (struct.unpack("I", struct.pack("f", value))[0] & FP19_BITS) | SCALE_FLAG for value in scale.flatten().tolist()
    ]
    if offset is not None:
        offsets = [max(min(round(value), 255), -256) & 0x1FF for value in offset.flatten().tolist()]
        offsets = offsets * len(words) if len(offsets) == 1 else offsets
        words = words * len(offsets) if len(words) == 1 else words
        words = [(word & 0x4000FFFFFFFF) | (value << 37) for word, value in zip(words, offsets, strict=True)]
    out.copy_(torch.tensor(words).view(out.shape))


def unpacked_scale(packed: torch.Tensor) -> torch.Tensor:
    """The float32 in the lower half of each 64-bit word."""
    return (packed & 0xFFFFFFFF).to(torch.int32).view(torch.float32)


@rule("aclnnQuantMatmulV5", "aclnnQuantMatmulWeightNz", source=MATMUL)
def quant_matmul(
    x1: Tensor,
    x2: Tensor,
    x1_scale: Tensor | None,
    x2_scale: Tensor,
    y_scale: Tensor | None,
    x1_offset: Tensor | None,
    x2_offset: Tensor | None,
    y_offset: Tensor | None,
    bias: Tensor | None,
    transpose_x1: Bool,
    transpose_x2: Bool,
    group_size: Int,
    out: Tensor,
) -> None:
    """(x1 @ x2 + integer bias) * scales + offset, or any other bias after the scales; sums of integers are exact."""
    if x1.dtype != torch.int8 or x2.dtype != torch.int8 or group_size != 0:
        raise ValueError(f"{x1.dtype} @ {x2.dtype} with groups of {group_size} is not modelled, only int8 @ int8")
    left = x1.transpose(-1, -2) if transpose_x1 else x1
    right = x2.transpose(-1, -2) if transpose_x2 else x2
    product = left.double() @ right.double()
    if bias is not None and bias.dtype == torch.int32:
        product = product + bias
    if out.dtype == torch.int32:
        out.copy_(product)
        return
    scale = unpacked_scale(x2_scale) if x2_scale.dtype == torch.int64 else x2_scale.float()
    result = product * scale
    if x1_scale is not None and x1_scale.numel():
        result = result * x1_scale.float()[..., None]
    if bias is not None and bias.dtype != torch.int32:
        result = result + bias.float()
    if x2_offset is not None and x2_offset.numel() and out.dtype == torch.int8:
        result = result + x2_offset.float()
    out.copy_(torch.round(result).clamp(-128, 127) if out.dtype == torch.int8 else result)


@rule("aclnnWeightQuantBatchMatmulV2", source=WEIGHT_MATMUL)
def weight_quant_matmul(
    x: Tensor,
    weight: Raw,
    scale: Tensor,
    offset: Tensor | None,
    out_scale: Tensor | None,
    out_offset: Tensor | None,
    bias: Tensor | None,
    group_size: Int32,
    out: Tensor,
) -> None:
    """x @ ((weight + offset) * scale) + bias, with a scale per column and group of rows, or per column."""
    if out_scale is not None or weight.is_transposed or weight.format == FRACTAL_NZ:
        raise ValueError("quantised results, and weights that are transposed or fractal, are not modelled")
    values = _int4_values(weight.view()) if weight.storage.dtype == torch.int32 else weight.view()
    _check_weight_quant(x, values, scale, offset, bias, group_size)
    k, n = values.shape
    group = torch.arange(k) // (group_size or k)
    zeros = 0.0 if offset is None else offset.float().reshape(-1, n)[group]
    dense = ((values.float() + zeros) * scale.float().reshape(-1, n)[group]).to(x.dtype)
    result = x.float() @ dense.float()
    out.copy_(result if bias is None else result + bias.float())


def _int4_values(words: torch.Tensor) -> torch.Tensor:
    """[k, n / 8] int32 -> [k, n] int8: the first of eight in the lowest bits (op-plugin, convert_to_int4_pack)."""
    halves = words.contiguous().view(torch.uint8)
    values = torch.stack((halves & 15, halves >> 4), -1).flatten(-2).to(torch.int8)
    return torch.where(values > 7, values - 16, values)


def _check_weight_quant(
    x: torch.Tensor,
    values: torch.Tensor,
    scale: torch.Tensor,
    offset: torch.Tensor | None,
    bias: torch.Tensor | None,
    group_size: int,
) -> None:
    """What the document says of shapes and dtypes on Atlas A2 and A3."""
    k, n = values.shape
    if values.dtype != torch.int8 or x.dtype not in (torch.float16, torch.bfloat16) or scale.dtype != x.dtype:
        raise ValueError(f"{x.dtype} @ {values.dtype} with scales in {scale.dtype}")
    if x.numel() == 0 or not (1 <= k <= 65535 and 1 <= n <= 65535):
        raise ValueError(f"products of {list(x.shape)} and {[k, n]}: empty, or longer than 65535")
    if group_size and (group_size % 32 or not 32 <= group_size < k):
        raise ValueError(f"antiquant_group_size {group_size} of {k}: a multiple of 32 below it")
    choices = [(-(-k // group_size), n)] if group_size else [(n,), (1, n)]
    if tuple(scale.shape) not in choices:
        raise ValueError(f"scales {list(scale.shape)} of {[k, n]} in groups of {group_size}")
    if offset is not None and (offset.shape != scale.shape or offset.dtype != x.dtype):
        raise ValueError(f"offsets {list(offset.shape)} in {offset.dtype} beside scales {list(scale.shape)}")
    if bias is not None and bias.dtype != (torch.float32 if x.dtype == torch.bfloat16 else torch.float16):
        raise ValueError(f"a bias in {bias.dtype} for {x.dtype}")
