"""Linear layers and experts: weights laid out as torch_npu's products read them, applied by the operators."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.interfaces.methods import MoEShape
from trunnion.reference.linear_method import UnquantizedLinearMethod
from trunnion.reference.quantised_methods import W8A8LinearMethod
from trunnion.reference.quantised_moe_methods import W8A8MoEMethod
from trunnion_ascend.fractal import lay_out
from trunnion_ascend.kernels.expert_rows import why_not_experts
from trunnion_ascend.kernels.quantised_experts import scale_dtype
from trunnion_ascend.kernels.quantised_linear import why_not_int8

HALVES = (torch.float16, torch.bfloat16)
"""What products with a fractal weight take."""


class FractalLinearMethod(UnquantizedLinearMethod):
    """`x @ weight.T + bias` with the weight fractal, for chips that need it; others multiply rows as fast."""

    def finalize(self, layer: nn.Module) -> None:
        if not layer.keeps_dense_weight and layer.weight.dtype in HALVES:
            lay_out(layer, "weight")


class Int8LinearMethod(W8A8LinearMethod):
    """As the reference's; int8 weights lie as [K, N], fractal, which the document of `npu_quant_matmul` recommends.

    Where the operator would be declined they stay in rows, which the reference reads.
    """

    def finalize(self, layer: nn.Module) -> None:
        super().finalize(layer)
        if not layer.keeps_dense_weight and why_not_int8(layer.dense_dtype, layer.weight.dtype) is None:
            lay_out(layer, "weight", transposed=True)


class Int8MoEMethod(W8A8MoEMethod):
    """As the reference's; int8 weights lie as [E, K, N], fractal; scales have the dtype that grouped products want."""

    def create(self, layer: nn.Module, shape: MoEShape) -> None:
        super().create(layer, shape)
        layer.dense_dtype = shape.dtype
        for name in ("w13_weight_scale", "w2_weight_scale"):
            scale = layer.get_parameter(name)
            scale.data = scale.data.to(scale_dtype(shape.dtype))

    def finalize(self, layer: nn.Module) -> None:
        if (why_not_int8(layer.dense_dtype, layer.w13.dtype) or why_not_experts(layer.w13.shape[0])) is None:
            lay_out(layer, "w13", transposed=True)
            lay_out(layer, "w2", transposed=True)
