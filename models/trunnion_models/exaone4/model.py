"""EXAONE 4 decoder (arXiv:2507.11407)."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.attention import Attention
from trunnion.layers.linear import QKVParallelLinear, RowParallelLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.exaone4.config import Exaone4Config
from trunnion_models.exaone4.weights import WEIGHT_MAP
from trunnion_models.gated_mlp import GatedMLP


class Exaone4Attention(nn.Module):
    def __init__(
        self, config: Exaone4Config, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        hidden_size, head_dim = config.hidden_size, config.head_dim
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = QKVParallelLinear(
            hidden_size, head_dim, num_heads, num_kv_heads, ctx=ctx, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(num_heads * head_dim, hidden_size, ctx=ctx, prefix=f"{prefix}.o_proj")
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, ctx=ctx)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, ctx=ctx)
        self.head_dim = head_dim
        self.rotary_emb = rotary_emb if config.rotates[index] else None
        self.attn = Attention(
            self.qkv_proj.num_heads,
            head_dim,
            self.qkv_proj.num_kv_heads,
            head_dim**-0.5,
            window=config.windows[index],
            ctx=ctx,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.qkv_proj.q_size, self.qkv_proj.kv_size, self.qkv_proj.kv_size], dim=-1)
        q, k = q.unflatten(-1, (-1, self.head_dim)), k.unflatten(-1, (-1, self.head_dim))  # [T, H, D]
        rotation = None if self.rotary_emb is None else self.rotary_emb.at(positions)
        return self.o_proj(self.attn(self.q_norm(q), self.k_norm(k), v, rotation))


class Exaone4DecoderLayer(nn.Module):
    def __init__(
        self, config: Exaone4Config, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = Exaone4Attention(config, index, rotary_emb, ctx, f"{prefix}.self_attn")
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, ctx=ctx, prefix=f"{prefix}.mlp")
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx)
        self.post_feedforward_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx)

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        hidden_states = hidden_states + self.post_attention_layernorm(self.self_attn(positions, hidden_states))
        return hidden_states + self.post_feedforward_layernorm(self.mlp(hidden_states))


class Exaone4Model(nn.Module):
    def __init__(self, config: Exaone4Config, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        self.layers = nn.ModuleList(
            Exaone4DecoderLayer(config, index, rotary_emb, ctx, f"{prefix}.layers.{index}")
            for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        for layer in self.layers:
            hidden_states = layer(positions, hidden_states)
        return self.norm(hidden_states)


class Exaone4ForCausalLM(nn.Module):
    config_class = Exaone4Config
    weight_map = WEIGHT_MAP

    def __init__(self, config: Exaone4Config, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = Exaone4Model(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
