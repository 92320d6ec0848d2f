"""Kernels of the native library behind operators of `trunnion`; what they do not take is declined, and counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trunnion.ops.registry import decline

DTYPES = (torch.float32, torch.bfloat16)
NAMES = ("rms_norm", "fused_add_rms_norm", "silu_and_mul")
"""Operators of `trunnion` that `trunnion_cpu` has under the same name and with the same arguments."""


def native_kernels() -> Mapping[str, Callable[..., Any]]:
    """Operator -> kernel. The library is loaded."""
    return {name: _kernel(name) for name in NAMES}


def direct(function: Any, args: Sequence[Any]) -> Any:
    """The native operator that a call of `function` would end in, or `function`: for calls that are made again."""
    namespace, _, name = str(function.name()).partition("::")
    if namespace == "trunnion" and name in NAMES and why_not(args) is None:
        return _operator(name)
    return function


def why_not(args: Sequence[Any]) -> str | None:
    """Why the native operators do not take these arguments."""
    dtypes = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
    if len(dtypes) > 1:
        return f"arguments of several dtypes: {', '.join(sorted(map(str, dtypes)))}"
    (dtype,) = dtypes
    return None if dtype in DTYPES else f"{dtype} is neither float32 nor bfloat16"


def _operator(name: str) -> Any:
    return getattr(torch.ops.trunnion_cpu, name).default


def _kernel(name: str) -> Callable[..., Any]:
    operator = _operator(name)

    def kernel(*args: Any) -> Any:
        if reason := why_not(args):
            return decline(name, reason, *args)
        return operator(*args)

    return kernel
