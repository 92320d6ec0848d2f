"""Weights alone of 4 and 8 bits, as `npu_weight_quant_batchmatmul` reads them, which makes them dense itself."""

from __future__ import annotations

import torch
import torch_npu
from torch import nn

from trunnion.ops.grouped_int import unpack
from trunnion.reference.grouped_int_methods import GroupedIntLinearMethod

HALVES = (torch.float16, torch.bfloat16)
PER_WORD = 8
"""Values of 4 bits in an int32, along the output features."""
LONGEST = 65535
"""Features that the operator takes on either side of a weight."""


def why_not_packed(dtype: torch.dtype, out_features: int, in_features: int) -> str | None:
    """Why the operator cannot multiply by a weight of this size for a model in `dtype`, or None."""
    if dtype not in HALVES:
        return f"products with packed weights come out in float16 and bfloat16, not in {dtype}"
    if out_features % PER_WORD:
        return f"{out_features} output features do not fill words of {PER_WORD}"
    if max(out_features, in_features) > LONGEST:
        return f"weights of [{out_features}, {in_features}] are longer than {LONGEST}"
    return None


class PackedLinearMethod(GroupedIntLinearMethod):
    """As the reference's; values lie as [K, N], signed, which the operator's document recommends for groups.

    They take the place of the loaded ones, and keep it across reloads. Scales lie as [G, N], and so do the offsets that
    are added to signed values. What the operator would not take stays as it was loaded, for the reference.
    """

    def finalize(self, layer: nn.Module) -> None:
        parameter = layer.get_parameter(self.names.weight)
        packed = layer.__dict__.get("packed_weight")
        if packed is not None and parameter.data_ptr() == packed.data_ptr():
            # Not loaded since.
            return
        super().finalize(layer)
        out_features, num_bytes = parameter.shape
        if why_not_packed(layer.dense_dtype, out_features, num_bytes * 8 // self.scheme.bits) is None:
            self._lay_out(layer, parameter)

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight = layer.__dict__.get("packed_weight")
        if weight is None:
            return super().apply(layer, x, bias)
        scales = getattr(layer, self.names.scales).t()
        shape = (*x.shape[:-1], scales.shape[1])
        if x.numel() == 0:
            return torch.empty(shape, dtype=x.dtype, device=x.device)
        if layer.feature_order is not None:
            x = x.index_select(-1, layer.feature_order)
        # The operator wants a bias in float32 beside bfloat16.
        wide_bias = bias.float() if bias is not None and x.dtype == torch.bfloat16 else bias
        out = torch_npu.npu_weight_quant_batchmatmul(
            x.reshape(-1, x.shape[-1]),
            weight,
            scales,
            antiquant_offset=layer.weight_offset,
            bias=wide_bias,
            antiquant_group_size=layer.int_group_size if scales.shape[0] > 1 else 0,
        )
        return out.view(shape)

    def _lay_out(self, layer: nn.Module, parameter: nn.Parameter) -> None:
        bits, middle = self.scheme.bits, 2 ** (self.scheme.bits - 1)
        # On the host: the operator that packs works there too.
        values = unpack(parameter.cpu(), bits).t().to(torch.int32) - middle
        fresh = values.to(torch.int8).contiguous().to(parameter.device)
        if bits == 4:
            fresh = torch_npu.npu_convert_weight_to_int4pack(values.contiguous().to(parameter.device))
        packed = _kept(layer, "packed_weight", fresh)
        parameter.data = packed.view(torch.uint8).view(parameter.shape)
        scales = layer.get_parameter(self.names.scales)
        scales.data = _kept(layer, "packed_scales", scales.data.t().contiguous()).t()
        offsets = None
        if self.scheme.has_zero_points:
            zeros = layer.get_parameter(self.names.zero_points)
            offsets = (middle - zeros.t().float()).to(layer.dense_dtype).contiguous()
        layer.register_buffer("weight_offset", _kept(layer, "packed_offsets", offsets), persistent=False)


def _kept(layer: nn.Module, name: str, fresh: torch.Tensor | None) -> torch.Tensor | None:
    """At the place where the first one lay: graphs read it there."""
    if fresh is None:
        return None
    kept = layer.__dict__.setdefault(name, fresh)
    if kept is not fresh:
        kept.copy_(fresh)
    return kept
