"""Where the tensors of a Qwen3.5-MoE checkpoint go; those of the vision tower are left out."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import ExpertRule
from trunnion_models.qwen3_5.weights import WEIGHT_MAP as QWEN3_5

EXPERTS = (ExpertRule(stacked_transposed=False),)
"""One by one in some releases, stacked as [E, 2I, H] and [E, H, I] in others."""

WEIGHT_MAP = dataclasses.replace(QWEN3_5, experts=EXPERTS)
