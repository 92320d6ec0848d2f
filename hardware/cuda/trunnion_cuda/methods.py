"""Linear layers and experts: the reference's methods, whose products are cuBLAS's or operators with kernels here."""

from __future__ import annotations

from trunnion.reference.linear_method import UnquantizedLinearMethod
from trunnion.reference.moe_method import UnquantizedMoEMethod

__all__ = ["UnquantizedLinearMethod", "UnquantizedMoEMethod"]
