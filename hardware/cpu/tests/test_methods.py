"""The linear method of unquantised layers: who multiplies, and what is counted."""

from __future__ import annotations

import pytest
import torch

from trunnion.config import BuildContext
from trunnion.layers.linear import ColumnParallelLinear
from trunnion.ops.registry import OPERATORS
from trunnion_cpu.hardware import CpuHardware
from trunnion_cpu.native import Native, native


@pytest.mark.skipif(not isinstance(native(), Native), reason="no native operators")
@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (torch.float32, {}),
        (torch.bfloat16, {}),
        (torch.float16, {("linear", "torch.float16 is neither float32 nor bfloat16"): 1}),
    ],
    ids=["float32", "bfloat16", "float16"],
)
def test_products_in_other_dtypes_are_counted(dtype: torch.dtype, expected: dict[tuple[str, str], int]) -> None:
    layer = ColumnParallelLinear(8, 4, ctx=BuildContext(hardware=CpuHardware(), dtype=dtype), prefix="p")
    torch.nn.init.normal_(layer.weight)
    x = torch.randn(3, 8).to(dtype)
    OPERATORS.reset_declined()
    with torch.inference_mode():
        torch.testing.assert_close(layer(x), torch.nn.functional.linear(x, layer.weight), rtol=1e-2, atol=1e-2)
    assert OPERATORS.declined() == expected
    OPERATORS.reset_declined()
