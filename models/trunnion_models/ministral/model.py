"""Ministral decoder: Ministral 3's, whose queries do not grow."""

from __future__ import annotations

from trunnion_models.ministral.config import MinistralConfig
from trunnion_models.ministral.weights import WEIGHT_MAP
from trunnion_models.ministral3.model import Ministral3ForCausalLM


class MinistralForCausalLM(Ministral3ForCausalLM):
    config_class = MinistralConfig
    weight_map = WEIGHT_MAP
