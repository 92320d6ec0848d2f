"""GLM-4-MoE decoder (arXiv:2508.06471): attention over heads rotated in part, DeepSeek-V3's experts."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.attention import Attention
from trunnion.layers.linear import QKVParallelLinear, RowParallelLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.deepseek_v3.model import DeepseekV3MoE
from trunnion_models.gated_mlp import GatedMLP
from trunnion_models.glm4_moe.config import Glm4MoeConfig
from trunnion_models.glm4_moe.weights import WEIGHT_MAP


class Glm4MoeAttention(nn.Module):
    def __init__(self, config: Glm4MoeConfig, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        hidden_size, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = QKVParallelLinear(
            hidden_size, head_dim, num_heads, num_kv_heads, bias=bias, ctx=ctx, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(num_heads * head_dim, hidden_size, ctx=ctx, prefix=f"{prefix}.o_proj")
        self.use_qk_norm = config.use_qk_norm
        if config.use_qk_norm:
            self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, ctx=ctx)
            self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, ctx=ctx)
        self.head_dim = head_dim
        self.rotary_emb = rotary_emb
        self.attn = Attention(
            self.qkv_proj.num_heads,
            head_dim,
            self.qkv_proj.num_kv_heads,
            head_dim**-0.5,
            ctx=ctx,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.qkv_proj.q_size, self.qkv_proj.kv_size, self.qkv_proj.kv_size], dim=-1)
        q, k = q.unflatten(-1, (-1, self.head_dim)), k.unflatten(-1, (-1, self.head_dim))  # [T, H, D]
        if self.use_qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        return self.o_proj(self.attn(q, k, v, self.rotary_emb.at(positions)))


class Glm4MoeDecoderLayer(nn.Module):
    def __init__(
        self, config: Glm4MoeConfig, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = Glm4MoeAttention(config, rotary_emb, ctx, f"{prefix}.self_attn")
        if index >= config.first_k_dense_replace:
            self.mlp: nn.Module = DeepseekV3MoE(config, ctx, f"{prefix}.mlp")
        else:
            self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, ctx=ctx, prefix=f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.self_attn(positions, hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Glm4MoeModel(nn.Module):
    def __init__(self, config: Glm4MoeConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        self.layers = nn.ModuleList(
            Glm4MoeDecoderLayer(config, index, rotary_emb, ctx, f"{prefix}.layers.{index}")
            for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class Glm4MoeForCausalLM(nn.Module):
    config_class = Glm4MoeConfig
    weight_map = WEIGHT_MAP

    def __init__(self, config: Glm4MoeConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = Glm4MoeModel(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
