"""Operators that the CUDA package puts over the reference, by name, and kernels that its groups and methods call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def kernels() -> Mapping[str, Callable[..., Any]]:
    """Operator of the `trunnion` namespace -> the Triton kernel's function of the same signature.

    What a kernel cannot take it declines with a reason (`trunnion.ops.registry.declined`). Triton is imported here and
    not before: whoever only asks for the package's name does without.
    """
    from trunnion_cuda.kernels import (
        activation,
        gated_delta,
        grouped_int_experts,
        grouped_int_linear,
        moe,
        norm,
        quantised_experts,
        quantised_linear,
        rotary_embedding,
        routing,
        sampled_ids,
    )

    modules = (
        activation,
        gated_delta,
        grouped_int_experts,
        grouped_int_linear,
        moe,
        norm,
        quantised_experts,
        quantised_linear,
        rotary_embedding,
        routing,
        sampled_ids,
    )
    return {name: function for module in modules for name, function in module.kernels().items()}
