"""Products of int8: activations quantised per token or by a scale of the layer, `npu_quant_matmul` with both scales."""

from __future__ import annotations

from typing import Any

import torch
import torch_npu

from trunnion.ops.registry import decline
from trunnion_ascend.float8 import refuse_operand

RESULTS = (torch.float16, torch.bfloat16)


def why_not_int8(dtype: torch.dtype, weight_dtype: torch.dtype) -> str | None:
    """Why activations of `dtype` cannot meet weights of `weight_dtype` in these products, or None."""
    if weight_dtype != torch.int8:
        return f"products of int8 only, not of {weight_dtype}"
    if dtype not in RESULTS:
        return f"products of int8 come out in float16 and bfloat16, not in {dtype}"
    return None


def quantised_tokens(x: torch.Tensor, input_scale: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, K] -> int8 values [T, K], scales [T] float32; with `input_scale` [1] all are that one."""
    if input_scale is None:
        return torch_npu.npu_dynamic_quant(x)
    # The document of the operator wants scales in the dtype of what they divide.
    values = torch_npu.npu_quantize(x.float(), input_scale, None, torch.qint8, -1, True)
    return values, input_scale.expand(x.shape[0]).contiguous()


def w8a8_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    input_scale: torch.Tensor | None,
    bias: torch.Tensor | None,
) -> torch.Tensor:
    """As `trunnion::w8a8_linear`; the least value that a static scale leads to is -128.

    The weight's memory may be that of its transpose, in rows or fractal.
    """
    refuse_operand("w8a8_linear", weight)
    if (reason := why_not_int8(x.dtype, weight.dtype)) is not None:
        return decline("w8a8_linear", reason, x, weight, weight_scale, input_scale, bias)
    shape = (*x.shape[:-1], weight.shape[0])
    if x.numel() == 0:
        return torch.empty(shape, dtype=x.dtype, device=x.device)
    values, scales = quantised_tokens(x.reshape(-1, x.shape[-1]), input_scale)
    out = torch_npu.npu_quant_matmul(
        values, weight.t(), weight_scale, pertoken_scale=scales, bias=bias, output_dtype=x.dtype
    )
    return out.view(shape)


def kernels() -> dict[str, Any]:
    """Operators by name."""
    return {"w8a8_linear": w8a8_linear}
