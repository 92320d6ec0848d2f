"""Where the tensors of a Qwen3.5-MoE checkpoint go: as Qwen3.5's, and its experts."""

from __future__ import annotations

import dataclasses

from trunnion.weights.name_map import ExpertRule
from trunnion_models.qwen3_5.weights import DRAFT_WEIGHT_MAP as QWEN3_5_DRAFT
from trunnion_models.qwen3_5.weights import WEIGHT_MAP as QWEN3_5

EXPERTS = (ExpertRule(stacked_transposed=False),)
"""One by one in some releases, stacked as [E, 2I, H] and [E, H, I] in others."""

WEIGHT_MAP = dataclasses.replace(QWEN3_5, experts=EXPERTS)
DRAFT_WEIGHT_MAP = dataclasses.replace(QWEN3_5_DRAFT, experts=EXPERTS)
