"""`x * silu(gate)`, what is left of a gated norm behind `npu_rms_norm`; `python -m` of this prints it in Ascend C.

TileLang writes the source without CANN; the binary is made by CANN's `bisheng`. A row of a block is copied to a core's
buffer, turned there by threads of the vector core, and copied back: 6 bytes an element, memory bandwidth is the limit.
"""

from __future__ import annotations

import sys
from typing import Any

import tilelang
import tilelang.ascend.language as ascend
import tilelang.language as T
from tilelang import tvm

BLOCK = 256
TARGET = {"kind": "ascend"}


def silu_gate(rows: int, features: int, dtype: str = "bfloat16") -> Any:
    """The program for x, gate and out [rows, features] of `dtype`; computed in float32.

    Raises:
        ValueError: `features` is no multiple of BLOCK.
    """
    if features % BLOCK:
        raise ValueError(f"features {features} is no multiple of {BLOCK}")

    @T.prim_func
    def silu_gate(
        x: T.Tensor((rows, features), dtype),
        gate: T.Tensor((rows, features), dtype),
        out: T.Tensor((rows, features), dtype),
    ):
        with T.Kernel(rows, features // BLOCK) as (row, column):
            value = T.alloc_shared((BLOCK,), dtype)
            weight = T.alloc_shared((BLOCK,), dtype)
            result = T.alloc_shared((BLOCK,), dtype)
            T.copy(x[row, column * BLOCK], value)
            T.copy(gate[row, column * BLOCK], weight)
            with ascend.SimtVF():
                for i in T.Parallel(BLOCK):
                    wide = T.cast(weight[i], "float32")
                    result[i] = T.cast(T.cast(value[i], "float32") * wide / (1.0 + T.exp(-wide)), dtype)
            T.copy(result, out[row, column * BLOCK])

    return silu_gate


def ascend_c(rows: int, features: int, dtype: str = "bfloat16") -> str:
    """The kernel's source in Ascend C."""
    target = tvm.target.Target(TARGET)
    with target:
        return str(tilelang.lower(silu_gate(rows, features, dtype), target=target).kernel_source)


def main() -> int:
    print(ascend_c(64, 2048))
    return 0


if __name__ == "__main__":
    sys.exit(main())
