"""Linear layers and experts: the reference's unquantised methods, whose products torch sends to cuBLAS."""

from __future__ import annotations

from trunnion.reference.linear_method import UnquantizedLinearMethod
from trunnion.reference.moe_method import UnquantizedMoEMethod

__all__ = ["UnquantizedLinearMethod", "UnquantizedMoEMethod"]
