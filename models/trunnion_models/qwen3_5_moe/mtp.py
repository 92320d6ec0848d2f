"""Qwen3.5-MoE's head for multi-token prediction: Qwen3.5's, with experts."""

from __future__ import annotations

from trunnion_models.qwen3_5.mtp import Qwen3_5MTP
from trunnion_models.qwen3_5_moe.config import Qwen3_5MoeConfig
from trunnion_models.qwen3_5_moe.weights import DRAFT_WEIGHT_MAP


class Qwen3_5MoeMTP(Qwen3_5MTP):
    config_class = Qwen3_5MoeConfig
    weight_map = DRAFT_WEIGHT_MAP
