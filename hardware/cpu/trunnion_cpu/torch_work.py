"""Which calls of a tape are work that is worth torch's own threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "einsum", "convolution"})
"""Operators of torch that multiply matrices, by their names in `aten`; so does all that attends."""
LIGHT = frozenset(
    {
        "topk_softmax",
        "grouped_topk",
        "biased_grouped_topk",
        "rms_norm",
        "fused_add_rms_norm",
        "silu_and_mul",
        "rms_norm_gated",
        "gelu_tanh_and_mul",
        "rotary_embedding",
        "mrope_embedding",
        "take_sampled",
    }
)
"""Operators of `trunnion` that are no such work, whoever computes them."""


def is_torch_work(calls: Iterable[Callable[..., Any]]) -> bool:
    """Whether one of a tape's operators is heavy work that torch does: with one thread it would take longer.

    Calls at break points do not count.
    """
    return any(_is_heavy(call) for call in calls)


def _is_heavy(call: Callable[..., Any]) -> bool:
    if not isinstance(call, torch._ops.OpOverload):
        return False
    namespace, _, name = str(call.name()).partition("::")
    name = name.partition(".")[0]
    if namespace == "trunnion":
        return name not in LIGHT
    return namespace == "aten" and (name in PRODUCTS or "attention" in name)
