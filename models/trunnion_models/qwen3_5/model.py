"""Qwen3.5 decoder: Qwen3-Next's, whose configuration says which projections and which kind of MLP a layer has.

A text token stands at the same position along all three axes of the rope, so positions are those of any other text.
"""

from __future__ import annotations

from trunnion_models.qwen3_5.config import Qwen3_5Config
from trunnion_models.qwen3_5.weights import WEIGHT_MAP
from trunnion_models.qwen3_next.model import Qwen3NextForCausalLM


class Qwen3_5ForCausalLM(Qwen3NextForCausalLM):
    config_class = Qwen3_5Config
    weight_map = WEIGHT_MAP
