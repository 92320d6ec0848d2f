"""Operators that the Ascend package puts over the reference, by name: calls of torch_npu's fused operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trunnion_ascend.float8 import refused_operators
from trunnion_ascend.soc import Soc


def kernels(soc: Soc) -> Mapping[str, Callable[..., Any]]:
    """Operator of the `trunnion` namespace -> the function of the same signature that runs on devices of `soc`.

    What a function cannot take it declines with a reason (`trunnion.ops.registry.declined`); what could not run on the
    reference either it refuses with an UnsupportedError. torch_npu is imported here and not before.
    """
    from trunnion_ascend.kernels import (
        activation,
        moe,
        norm,
        quantised_experts,
        quantised_linear,
        rotary_embedding,
        routing,
    )

    modules = (activation, moe, norm, quantised_experts, quantised_linear, rotary_embedding, routing)
    found = {name: function for module in modules for name, function in module.kernels().items()}
    absent = why_not(soc)
    return refused_operators(soc) | {name: function for name, function in found.items() if name not in absent}


def why_not(soc: Soc) -> Mapping[str, str]:
    """Operators of the `trunnion` namespace for which there is nothing to call on devices of `soc`, with the reason."""
    absent = {"grouped_int_linear": "layers call npu_weight_quant_batchmatmul; this is for what that does not take"}
    if not soc.has_rotary:
        reason = f"npu_rotary_mul turns heads of 128 features by halves on {soc.family}, nothing else"
        absent |= dict.fromkeys(("rotary_embedding", "mrope_embedding"), reason)
    if not soc.has_expert_operators:
        reason = f"torch_npu has no operators of gating and grouped products for {soc.family}"
        gating = ("topk_softmax", "grouped_topk", "biased_grouped_topk")
        absent |= dict.fromkeys((*gating, "fused_experts", "w8a8_experts"), reason)
    if not soc.has_token_scales:
        reason = f"products of int8 take no scale per token on {soc.family}"
        absent |= dict.fromkeys(("w8a8_linear", "w8a8_experts"), reason)
    return absent
