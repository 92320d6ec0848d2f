"""XLM-RoBERTa encoder (arXiv:1911.02116): embeddings, and classifiers such as cross-encoder rerankers."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.linear import ReplicatedLinear
from trunnion.layers.pooling import SequencePooling, rows_of_first_tokens
from trunnion_models.bert.model import BertModel
from trunnion_models.xlm_roberta.config import XLMRobertaConfig
from trunnion_models.xlm_roberta.weights import EMBEDDING_WEIGHT_MAP, WEIGHT_MAP


class XLMRobertaClassificationHead(nn.Module):
    def __init__(self, config: XLMRobertaConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size
        self.dense = ReplicatedLinear(size, size, bias=True, ctx=ctx, prefix=f"{prefix}.dense")
        self.out_proj = ReplicatedLinear(size, config.num_labels, bias=True, ctx=ctx, prefix=f"{prefix}.out_proj")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.out_proj(torch.tanh(self.dense(hidden)))


class XLMRobertaEmbedding(nn.Module):
    config_class = XLMRobertaConfig
    weight_map = EMBEDDING_WEIGHT_MAP

    def __init__(self, config: XLMRobertaConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.embedding_size = config.hidden_size
        self.roberta = BertModel(config, ctx, f"{prefix}.roberta" if prefix else "roberta")
        self.pooling = SequencePooling(ctx=ctx)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.pooling(self.roberta(input_ids, positions, inputs_embeds), positions)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.pooling.finish(hidden)


class XLMRobertaForSequenceClassification(nn.Module):
    """Scores of a text, or of a pair that the tokenizer has joined, [num_labels], as they leave the last layer."""

    config_class = XLMRobertaConfig
    weight_map = WEIGHT_MAP

    def __init__(self, config: XLMRobertaConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.embedding_size = config.num_labels
        self.roberta = BertModel(config, ctx, f"{base}roberta")
        self.classifier = XLMRobertaClassificationHead(config, ctx, f"{base}classifier")

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return rows_of_first_tokens(self.roberta(input_ids, positions, inputs_embeds), positions)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.classifier(hidden).float()
