"""BERT encoder (arXiv:1810.04805): embeddings as sentence-transformers pools them, classifiers and cross-encoders."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.activation import Gelu
from trunnion.layers.bidirectional_attention import BidirectionalAttention
from trunnion.layers.linear import ColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from trunnion.layers.norm import LayerNorm
from trunnion.layers.pooling import SequencePooling, rows_of_first_tokens
from trunnion.layers.vocab_embedding import VocabParallelEmbedding
from trunnion_models.bert.config import BertConfig
from trunnion_models.bert.weights import EMBEDDING_WEIGHT_MAP, WEIGHT_MAP


class BertEmbeddings(nn.Module):
    """Words, positions and types of tokens."""

    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size
        self.word_embeddings = VocabParallelEmbedding(
            config.vocab_size, size, ctx=ctx, prefix=f"{prefix}.word_embeddings"
        )
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, size, dtype=ctx.dtype)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, size, dtype=ctx.dtype)
        self.LayerNorm = LayerNorm(size, config.layer_norm_eps, ctx=ctx)
        self.position_offset = config.position_offset

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
    ) -> torch.Tensor:
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        types = self.token_type_embeddings
        typed = words + (types.weight[0] if token_type_ids is None else types(token_type_ids))
        return self.LayerNorm(typed + self.position_embeddings(positions + self.position_offset))


class BertOutput(nn.Module):
    """`LayerNorm(dense(x) + residual)`, after the attention and after the feed-forward block."""

    def __init__(self, in_features: int, config: BertConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.dense = RowParallelLinear(in_features, config.hidden_size, bias=True, ctx=ctx, prefix=f"{prefix}.dense")
        self.LayerNorm = LayerNorm(config.hidden_size, config.layer_norm_eps, ctx=ctx)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return self.LayerNorm(self.dense(x) + residual)


class BertAttention(nn.Module):
    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        heads, head_dim = config.num_attention_heads, config.head_dim
        self.qkv_proj = QKVParallelLinear(
            config.hidden_size, head_dim, heads, heads, bias=True, ctx=ctx, prefix=f"{prefix}.qkv_proj"
        )
        self.attn = BidirectionalAttention(
            self.qkv_proj.num_heads, head_dim, head_dim**-0.5, ctx=ctx, prefix=f"{prefix}.attn"
        )
        self.output = BertOutput(heads * head_dim, config, ctx, f"{prefix}.output")

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv_proj(hidden_states).chunk(3, dim=-1)
        return self.output(self.attn(q, k, v), hidden_states)


class BertIntermediate(nn.Module):
    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.dense = ColumnParallelLinear(
            config.hidden_size, config.intermediate_size, bias=True, ctx=ctx, prefix=f"{prefix}.dense"
        )
        self.intermediate_act_fn = Gelu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.intermediate_act_fn(self.dense(x))


class BertLayer(nn.Module):
    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.attention = BertAttention(config, ctx, f"{prefix}.attention")
        self.intermediate = BertIntermediate(config, ctx, f"{prefix}.intermediate")
        self.output = BertOutput(config.intermediate_size, config, ctx, f"{prefix}.output")

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        attended = self.attention(hidden_states)
        return self.output(self.intermediate(attended), attended)


class BertEncoder(nn.Module):
    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.layer = nn.ModuleList(
            BertLayer(config, ctx, f"{prefix}.layer.{index}") for index in range(config.num_hidden_layers)
        )

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            hidden_states = layer(hidden_states)
        return hidden_states


class BertPooler(nn.Module):
    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size
        self.dense = ReplicatedLinear(size, size, bias=True, ctx=ctx, prefix=f"{prefix}.dense")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.dense(hidden))


class BertModel(nn.Module):
    """[T] tokens, positions and types (None: all 0) -> hidden states [T, hidden_size]; a classifier has a `pooler`."""

    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str, *, with_pooler: bool = False) -> None:
        super().__init__()
        self.embeddings = BertEmbeddings(config, ctx, f"{prefix}.embeddings")
        self.encoder = BertEncoder(config, ctx, f"{prefix}.encoder")
        self.pooler = BertPooler(config, ctx, f"{prefix}.pooler") if with_pooler else None

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.encoder(self.embeddings(input_ids, positions, inputs_embeds, token_type_ids))


class BertEmbedding(nn.Module):
    config_class = BertConfig
    weight_map = EMBEDDING_WEIGHT_MAP

    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        self.config = config
        self.embedding_size = config.hidden_size
        self.num_token_types = config.type_vocab_size
        self.bert = BertModel(config, ctx, f"{prefix}.bert" if prefix else "bert")
        self.pooling = SequencePooling(ctx=ctx)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return self.pooling(self.bert(input_ids, positions, inputs_embeds, token_type_ids), positions)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.pooling.finish(hidden)


class BertForSequenceClassification(nn.Module):
    """Scores of a text, or of a pair that types tell apart, [num_labels], as they leave the last layer."""

    config_class = BertConfig
    weight_map = WEIGHT_MAP

    def __init__(self, config: BertConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.embedding_size = config.num_labels
        self.num_token_types = config.type_vocab_size
        self.bert = BertModel(config, ctx, f"{base}bert", with_pooler=True)
        self.classifier = ReplicatedLinear(
            config.hidden_size, config.num_labels, bias=True, ctx=ctx, prefix=f"{base}classifier"
        )

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return rows_of_first_tokens(self.bert(input_ids, positions, inputs_embeds, token_type_ids), positions)

    def pool(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.bert.pooler(hidden)).float()
