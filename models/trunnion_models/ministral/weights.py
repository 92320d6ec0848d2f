"""Where the tensors of a Ministral checkpoint go: where Llama's do."""

from __future__ import annotations

from trunnion_models.llama.weights import WEIGHT_MAP

__all__ = ["WEIGHT_MAP"]
