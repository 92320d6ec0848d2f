"""Qwen3.5's head for multi-token prediction: Qwen3-Next's, around a gated attention layer of this family.

As vLLM (`qwen3_5_mtp.py`) runs the published heads, and as transformers' `MtpModel` places the same tensors of others.
"""

from __future__ import annotations

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion_models.qwen3_5.config import Qwen3_5Config, Qwen3_5TextConfig
from trunnion_models.qwen3_5.weights import DRAFT_WEIGHT_MAP
from trunnion_models.qwen3_next.mtp import Qwen3NextMTP


class Qwen3_5MTP(Qwen3NextMTP):
    config_class = Qwen3_5Config
    weight_map = DRAFT_WEIGHT_MAP
    layers_field = "mtp_num_hidden_layers"

    def __init__(self, config: Qwen3_5TextConfig, ctx: BuildContext, prefix: str = "") -> None:
        if config.mtp_use_dedicated_embeddings:
            raise UnsupportedError(
                f"{type(self).__name__}: mtp_use_dedicated_embeddings True is not supported; choices: False"
            )
        super().__init__(config, ctx, prefix)
