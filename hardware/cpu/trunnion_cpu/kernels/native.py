"""Kernels of the native library behind operators of `trunnion`; what they do not take is declined, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trunnion.ops.moe import experts_by_token
from trunnion.ops.registry import OPERATORS, decline

DTYPES = (torch.float32, torch.bfloat16)
OPERANDS: Mapping[str, tuple[int, ...]] = {
    "rms_norm": (0, 1),
    "fused_add_rms_norm": (0, 1, 2),
    "silu_and_mul": (0,),
    "w8a8_linear": (0, 4),
    "grouped_int_linear": (0, 2, 4),
    "fused_experts": (0, 1, 2, 5, 6),
    "w8a8_experts": (0,),
    "grouped_int_experts": (0, 2, 5),
}
"""Operators of `trunnion` that `trunnion_cpu` has under the same name and with the same arguments, and the numbers of
those arguments that are of one dtype, of DTYPES."""

TORCHS: Mapping[str, Callable[..., Any]] = {"fused_experts": experts_by_token}
"""What computes where the native operator declines: it would take much longer in the reference."""


def native_kernels() -> Mapping[str, Callable[..., Any]]:
    """Operator -> kernel. The library is loaded."""
    return {name: _kernel(name) for name in OPERANDS}


def direct(function: Any, args: Sequence[Any]) -> Any:
    """The native operator that a call of `function` would end in, or `function`: for calls that are made again."""
    namespace, _, name = str(function.name()).partition("::")
    if namespace == "trunnion" and name in OPERANDS and why_not(name, args) is None:
        return _operator(name)
    return function


def why_not(name: str, args: Sequence[Any]) -> str | None:
    """Why the native operator `name` does not take these arguments."""
    operands = (args[number] for number in OPERANDS[name] if number < len(args))
    dtypes = {operand.dtype for operand in operands if operand is not None}
    if len(dtypes) > 1:
        return f"arguments of several dtypes: {', '.join(sorted(map(str, dtypes)))}"
    (dtype,) = dtypes
    if dtype not in DTYPES:
        return f"{dtype} is neither float32 nor bfloat16"
    if name in ("w8a8_linear", "w8a8_experts") and args[1].dtype != torch.int8:
        return f"weights in {args[1].dtype}"
    return None


def _operator(name: str) -> Any:
    return getattr(torch.ops.trunnion_cpu, name).default


def _kernel(name: str) -> Callable[..., Any]:
    operator, torchs = _operator(name), TORCHS.get(name)

    def kernel(*args: Any) -> Any:
        if (reason := why_not(name, args)) is None:
            return operator(*args)
        if torchs is None:
            return decline(name, reason, *args)
        OPERATORS.count_declined(name, reason)
        return torchs(*args)

    return kernel
