"""Matrix cases this package does not run yet, each with its reason. A listed case that passes fails the matrix."""

from __future__ import annotations

UNSUPPORTED: dict[str, str] = {}
"""`<card>` or `<card>-<dtype>` -> reason"""
