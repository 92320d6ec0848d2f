"""Operators of the `trunnion` namespace: importing this package registers every family's schema, fake and reference."""

from __future__ import annotations

from trunnion.ops import activation, gated_delta_rule, grouped_int, moe, norm, quantised, rotary_embedding, sampled_ids

__all__ = [
    "activation",
    "gated_delta_rule",
    "grouped_int",
    "moe",
    "norm",
    "quantised",
    "rotary_embedding",
    "sampled_ids",
]
