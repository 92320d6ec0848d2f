"""A plain torch implementation of everything that is not a stateless operator; hardware packages inherit it."""

from __future__ import annotations

from trunnion.reference.hardware import ReferenceHardware

__all__ = ["ReferenceHardware"]
