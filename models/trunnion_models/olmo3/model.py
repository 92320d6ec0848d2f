"""OLMo 3 decoder (arXiv:2512.13961): OLMo 2's, whose configuration says the windows."""

from __future__ import annotations

from trunnion_models.olmo2.model import Olmo2ForCausalLM
from trunnion_models.olmo3.config import Olmo3Config
from trunnion_models.olmo3.weights import WEIGHT_MAP


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    config_class = Olmo3Config
    weight_map = WEIGHT_MAP
