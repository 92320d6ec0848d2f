"""Mistral decoder (arXiv:2310.06825)."""

from __future__ import annotations

from trunnion_models.llama.model import LlamaForCausalLM
from trunnion_models.mistral.config import MistralConfig
from trunnion_models.mistral.weights import WEIGHT_MAP


class MistralForCausalLM(LlamaForCausalLM):
    config_class = MistralConfig
    weight_map = WEIGHT_MAP
