"""Corrects how Triton 3.7's interpreter converts and multiplies narrow floats.

Two faults there, none of them in compiled kernels: rounding to a narrower format loses the carry into the exponent
(1.9999 becomes 1.0 in bfloat16), and `tl.dot` multiplies bfloat16 by its bits, as if they were integers.
"""

from __future__ import annotations

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

TORCH_DTYPES = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
BITS = {8: (np.uint8, torch.uint8), 16: (np.uint16, torch.uint16), 32: (np.uint32, torch.uint32)}


def _converted(data: np.ndarray, source: tl.dtype, target: tl.dtype, rounding: object = None) -> np.ndarray:
    """As the interpreter's own function: bits of `target` for bits of `source`, rounded to even."""
    source, target = source.scalar, target.scalar
    as_numpy, _ = BITS[source.primitive_bitwidth]
    bits = torch.from_numpy(np.ascontiguousarray(data).view(as_numpy).copy()).view(TORCH_DTYPES[str(source)])
    wanted_numpy, wanted_torch = BITS[target.primitive_bitwidth]
    made = bits.to(torch.float32).to(TORCH_DTYPES[str(target)]).view(wanted_torch)
    return made.numpy().astype(wanted_numpy, copy=False).reshape(data.shape)


def _as_float32(handle: interpreter.TensorHandle) -> interpreter.TensorHandle:
    scalar = handle.dtype.scalar
    if str(scalar) not in ("bf16", "fp8e4nv", "fp8e5"):
        return handle
    return interpreter.TensorHandle(_converted(handle.data, scalar, tl.float32).view(np.float32), tl.float32)


def install() -> None:
    """Once per process of tests."""
    multiply = interpreter.InterpreterBuilder.create_dot

    def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
        return multiply(self, _as_float32(a), _as_float32(b), d, input_precision, max_num_imprecise_acc)

    interpreter._convert_float = _converted
    interpreter.InterpreterBuilder.create_dot = create_dot
