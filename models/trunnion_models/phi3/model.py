"""Phi-3 decoder (arXiv:2404.14219): Llama's, under other settings and from another layout."""

from __future__ import annotations

from trunnion_models.llama.model import LlamaForCausalLM
from trunnion_models.phi3.config import Phi3Config
from trunnion_models.phi3.weights import WEIGHT_MAP


class Phi3ForCausalLM(LlamaForCausalLM):
    config_class = Phi3Config
    weight_map = WEIGHT_MAP
