"""The text of Mistral 3: Ministral 3's decoder, whose queries grow only if the configuration says so."""

from __future__ import annotations

from trunnion_models.ministral3.model import Ministral3ForCausalLM
from trunnion_models.mistral3.config import Mistral3Config
from trunnion_models.mistral3.weights import WEIGHT_MAP


class Mistral3ForConditionalGeneration(Ministral3ForCausalLM):
    config_class = Mistral3Config
    weight_map = WEIGHT_MAP
