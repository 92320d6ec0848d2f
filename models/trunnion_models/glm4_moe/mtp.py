"""GLM-4-MoE's head for multi-token prediction: DeepSeek-V3's around a decoder layer of its own."""

from __future__ import annotations

from typing import Any

from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion_models.deepseek_v3.mtp import DeepseekV3MTP
from trunnion_models.glm4_moe.config import Glm4MoeConfig
from trunnion_models.glm4_moe.model import Glm4MoeDecoderLayer
from trunnion_models.glm4_moe.weights import DRAFT_WEIGHT_MAP


class Glm4MoeMTP(DeepseekV3MTP):
    config_class: type[Any] = Glm4MoeConfig
    weight_map = DRAFT_WEIGHT_MAP

    def decoder_layer(self, config: Glm4MoeConfig, ctx: BuildContext, prefix: str) -> nn.Module:
        """The layer after the decoder's last one."""
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        return Glm4MoeDecoderLayer(config, config.num_hidden_layers, rotary_emb, ctx, prefix)
