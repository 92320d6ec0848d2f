"""Qwen3 embedding (arXiv:2506.05176): the Qwen3 decoder without a head, pooled at the last token."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.pooling import LastTokenPooling
from trunnion_models.qwen3.config import Qwen3Config
from trunnion_models.qwen3.model import Qwen3Model
from trunnion_models.qwen3.weights import POOLING_WEIGHT_MAP


class Qwen3Embedding(nn.Module):
    config_class = Qwen3Config
    weight_map = POOLING_WEIGHT_MAP

    def __init__(self, config: Qwen3Config, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.embedding_size = config.hidden_size
        self.model = Qwen3Model(config, ctx, f"{prefix}.model" if prefix else "model")
        self.pooling = LastTokenPooling(ctx=ctx)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.pooling(hidden)
