"""Refuses what a model would need float8 for on chips without it: their casts take no such tensor (CANN, aclnnCast)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from trunnion.errors import UnsupportedError
from trunnion.interfaces.attention import AttentionSpec, GroupSpec
from trunnion.interfaces.quantization import W8A8, BlockFP8, Scheme
from trunnion_ascend.soc import Soc

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
CHECKPOINTS = "a checkpoint in bfloat16, or in int8 (compressed-tensors, int-quantized)"


def refuse_scheme(scheme: Scheme | None, prefix: str, soc: Soc) -> None:
    """UnsupportedError if the layer or block of experts `prefix` is stored in float8 and the chip has none."""
    if soc.has_float8:
        return
    if isinstance(scheme, BlockFP8):
        stored = "float8_e4m3fn in blocks of " + " x ".join(map(str, scheme.block))
    elif isinstance(scheme, W8A8) and scheme.dtype in FLOAT8:
        per, activations = "row" if scheme.per_row else "tensor", scheme.activations.value
        stored = f"{_name(scheme.dtype)} with a scale per {per}, activations scaled by {activations}"
    else:
        return
    raise UnsupportedError(f"{prefix}: weights in {stored}; {_why(soc)}; choices: {CHECKPOINTS}")


def refuse_cache(spec: GroupSpec, soc: Soc) -> None:
    """UnsupportedError if keys and values would be cached in float8 and the chip has none."""
    if isinstance(spec, AttentionSpec) and spec.cache_dtype in FLOAT8 and not soc.has_float8:
        raise UnsupportedError(f"caches in {_name(spec.cache_dtype)}: {_why(soc)}; kv_cache_dtype choices: auto")


def refuse_operand(operator: str, weight: torch.Tensor) -> None:
    """UnsupportedError if a product is handed a weight in float8, on which the reference would fail in a cast."""
    if weight.dtype in FLOAT8:
        raise UnsupportedError(f"{operator} of weights in {_name(weight.dtype)}: CANN casts none; choices: int8")


def refused_operators(soc: Soc) -> dict[str, Callable[..., Any]]:
    """Operators of float8 alone -> what stands for them on a chip without it: the reference would fail in a cast."""
    if soc.has_float8:
        return {}

    def refusal(operator: str) -> Callable[..., NoReturn]:
        def refuse(*_: object) -> NoReturn:
            raise UnsupportedError(f"{operator}: {_why(soc)}; choices: w8a8_linear and w8a8_experts of int8")

        return refuse

    return {name: refusal(name) for name in ("block_fp8_linear", "block_fp8_experts")}


def _why(soc: Soc) -> str:
    return f"{soc.family} has no float8, and CANN casts none there"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
