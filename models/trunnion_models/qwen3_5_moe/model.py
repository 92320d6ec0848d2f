"""Qwen3.5-MoE decoder: Qwen3.5's, whose configuration has experts in every layer."""

from __future__ import annotations

from trunnion_models.qwen3_5.model import Qwen3_5ForCausalLM
from trunnion_models.qwen3_5_moe.config import Qwen3_5MoeConfig
from trunnion_models.qwen3_5_moe.weights import WEIGHT_MAP


class Qwen3_5MoeForCausalLM(Qwen3_5ForCausalLM):
    config_class = Qwen3_5MoeConfig
    weight_map = WEIGHT_MAP
