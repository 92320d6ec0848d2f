"""Where the tensors of an OLMo 3 checkpoint go: where OLMo 2's do."""

from __future__ import annotations

from trunnion_models.olmo2.weights import WEIGHT_MAP

__all__ = ["WEIGHT_MAP"]
