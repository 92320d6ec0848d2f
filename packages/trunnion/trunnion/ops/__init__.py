"""Operators of the `trunnion` namespace: importing this package registers every family's schema, fake and reference."""

from __future__ import annotations

from trunnion.ops import activation, norm, rotary_embedding

__all__ = ["activation", "norm", "rotary_embedding"]
