"""Cohere 2 decoder (arXiv:2504.00698): attention and MLP read one norm; only layers with a window have a rope."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.attention import Attention
from trunnion.layers.linear import QKVParallelLinear, RowParallelLinear
from trunnion.layers.norm import LayerNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.cohere2.config import Cohere2Config
from trunnion_models.cohere2.weights import WEIGHT_MAP
from trunnion_models.gated_mlp import GatedMLP


class Cohere2Attention(nn.Module):
    def __init__(
        self, config: Cohere2Config, window: int | None, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        hidden_size, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = QKVParallelLinear(
            hidden_size, head_dim, num_heads, num_kv_heads, bias=bias, ctx=ctx, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(
            num_heads * head_dim,
            hidden_size,
            bias=bias,
            reduce_results=False,
            ctx=ctx,
            prefix=f"{prefix}.o_proj",
        )
        self.rotary_emb = None if window is None else rotary_emb
        self.attn = Attention(
            self.qkv_proj.num_heads,
            head_dim,
            self.qkv_proj.num_kv_heads,
            head_dim**-0.5,
            window=window,
            ctx=ctx,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.qkv_proj.q_size, self.qkv_proj.kv_size, self.qkv_proj.kv_size], dim=-1)
        rotation = None if self.rotary_emb is None else self.rotary_emb.at(positions)
        return self.o_proj(self.attn(q, k, v, rotation))


class Cohere2DecoderLayer(nn.Module):
    def __init__(
        self, config: Cohere2Config, window: int | None, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = Cohere2Attention(config, window, rotary_emb, ctx, f"{prefix}.self_attn")
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, reduce_results=False, ctx=ctx, prefix=f"{prefix}.mlp"
        )
        self.input_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps, bias=False, ctx=ctx)
        self.collectives = ctx.parallel.collectives

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        normed = self.input_layernorm(hidden_states)
        # One sum over the ranks for both.
        both = self.self_attn(positions, normed) + self.mlp(normed)
        return hidden_states + self.collectives.all_reduce(both)


class Cohere2Model(nn.Module):
    def __init__(self, config: Cohere2Config, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = RotaryEmbedding(
            config.rope, config.head_dim, config.max_position_embeddings, interleaved=True, ctx=ctx
        )
        self.layers = nn.ModuleList(
            Cohere2DecoderLayer(config, window, rotary_emb, ctx, f"{prefix}.layers.{index}")
            for index, window in enumerate(config.windows)
        )
        self.norm = LayerNorm(config.hidden_size, config.layer_norm_eps, bias=False, ctx=ctx)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        for layer in self.layers:
            hidden_states = layer(positions, hidden_states)
        return self.norm(hidden_states)


class Cohere2ForCausalLM(nn.Module):
    config_class = Cohere2Config
    weight_map = WEIGHT_MAP

    def __init__(self, config: Cohere2Config, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = Cohere2Model(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden) * self.config.logit_scale
