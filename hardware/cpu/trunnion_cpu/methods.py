"""The linear method of an unquantised checkpoint on CPUs: native products for few rows, torch's for many."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.reference.linear_method import UnquantizedLinearMethod
from trunnion_cpu.native import Native

MOST_ROWS = {
    ("avx512_bf16", torch.bfloat16): 64,
    ("avx512_bf16", torch.float32): 512,
    ("avx512", torch.bfloat16): 16,
    ("avx512", torch.float32): 512,
    ("avx2", torch.bfloat16): 16,
    ("avx2", torch.float32): 64,
    ("portable", torch.bfloat16): 4,
    ("portable", torch.float32): 4,
}
"""(instruction set, dtype) -> rows up to which reading the weight as it lies is no slower than torch, on one core.

Measured where there is AVX512-BF16; where there is none, torch's products in bfloat16 are slower than they were then.
"""


class CpuLinearMethod(UnquantizedLinearMethod):
    """`x @ weight.T + bias`; the weight stays as it was loaded, whoever multiplies."""

    def __init__(self, native: Native) -> None:
        self._most_rows = {dtype: rows for (isa, dtype), rows in MOST_ROWS.items() if isa == native.isa}

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight: torch.Tensor = layer.weight
        if x.numel() <= self._most_rows.get(x.dtype, 0) * weight.shape[1] and weight.dtype == x.dtype and x.is_cpu:
            out: torch.Tensor = torch.ops.trunnion_cpu.linear(x, weight, bias)
            return out
        return F.linear(x, weight, bias)
