"""The linear method of the CPU: native products of weights as they lie, or packed before the first step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.ops.registry import OPERATORS
from trunnion.reference.linear_method import UnquantizedLinearMethod
from trunnion_cpu.native import Native
from trunnion_cpu.packed_weights import is_packed, repack

ALL_ROWS = 1 << 40
MOST_ROWS = {
    ("avx512_bf16", torch.bfloat16): ALL_ROWS,
    ("avx512_bf16", torch.float32): ALL_ROWS,
    ("avx512", torch.bfloat16): ALL_ROWS,
    ("avx512", torch.float32): ALL_ROWS,
    ("avx2", torch.bfloat16): ALL_ROWS,
    ("avx2", torch.float32): 256,
    ("portable", torch.bfloat16): 4,
    ("portable", torch.float32): 4,
}
"""(instruction set, dtype) -> rows up to which a native product is no slower than torch's.

Measured up to 1,024 rows with two threads on one processor with AVX512-BF16, torch held to the same instructions. The
portable ones are also those of processors where nothing was measured, whose torch may have better.
"""


class CpuLinearMethod(UnquantizedLinearMethod):
    """`x @ weight.T + bias`; the weight stays as it was loaded, until `packed_weights.pack` packs it."""

    def __init__(self, native: Native) -> None:
        self._most_rows = {dtype: rows for (isa, dtype), rows in MOST_ROWS.items() if isa == native.isa}

    def finalize(self, layer: nn.Module) -> None:
        repack(layer)

    def dense_weight(self, layer: nn.Module) -> torch.Tensor:
        assert not is_packed(layer), "a layer that keeps its dense weight is not packed"
        return super().dense_weight(layer)

    def rows(self, layer: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        if not is_packed(layer):
            return F.embedding(ids, layer.weight)
        rows: torch.Tensor = torch.ops.trunnion_cpu.packed_rows(ids, layer.weight)
        return rows

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        weight: torch.Tensor = layer.weight
        if is_packed(layer):
            packed: torch.Tensor = torch.ops.trunnion_cpu.packed_linear(x, weight, bias)
            return packed
        if x.numel() <= self._most_rows.get(x.dtype, 0) * weight.shape[1] and weight.dtype == x.dtype and x.is_cpu:
            out: torch.Tensor = torch.ops.trunnion_cpu.linear(x, weight, bias)
            return out
        if x.dtype not in self._most_rows:
            OPERATORS.count_declined("linear", f"{x.dtype} is neither float32 nor bfloat16")
        return F.linear(x, weight, bias)


def packable_layers(model: object) -> list[nn.Module]:
    """Layers of `model` whose weight CpuLinearMethod applies, each once."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [layer for layer in modules if isinstance(getattr(layer, "method", None), CpuLinearMethod)]
