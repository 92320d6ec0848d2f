"""gpt-oss decoder (arXiv:2508.10925)."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.methods import ClampedSwiGLU
from trunnion.layers.attention import Attention
from trunnion.layers.fused_moe import FusedMoE, Router
from trunnion.layers.linear import QKVParallelLinear, RowParallelLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.gpt_oss.config import GptOssConfig
from trunnion_models.gpt_oss.weights import WEIGHT_MAP


class GptOssAttention(nn.Module):
    def __init__(
        self, config: GptOssConfig, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        hidden_size, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.qkv_proj = QKVParallelLinear(
            hidden_size, head_dim, num_heads, num_kv_heads, bias=bias, ctx=ctx, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(
            num_heads * head_dim, hidden_size, bias=bias, ctx=ctx, prefix=f"{prefix}.o_proj"
        )
        self.head_dim = head_dim
        self.rotary_emb = rotary_emb
        self.attn = Attention(
            self.qkv_proj.num_heads,
            head_dim,
            self.qkv_proj.num_kv_heads,
            head_dim**-0.5,
            window=config.windows[index],
            sinks=True,
            ctx=ctx,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.qkv_proj.q_size, self.qkv_proj.kv_size, self.qkv_proj.kv_size], dim=-1)
        q, k = q.unflatten(-1, (-1, self.head_dim)), k.unflatten(-1, (-1, self.head_dim))  # [T, H, D]
        return self.o_proj(self.attn(q, k, v, self.rotary_emb.at(positions)))


class GptOssMLP(nn.Module):
    def __init__(self, config: GptOssConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.router = Router(
            config.hidden_size, config.num_local_experts, bias=True, ctx=ctx, prefix=f"{prefix}.router"
        )
        self.experts = FusedMoE(
            config.num_local_experts,
            config.num_experts_per_tok,
            config.hidden_size,
            config.intermediate_size,
            renormalize=True,
            bias=True,
            swiglu=ClampedSwiGLU(alpha=config.swiglu_alpha, limit=config.swiglu_limit),
            ctx=ctx,
            prefix=f"{prefix}.experts",
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(x, self.router(x))


class GptOssDecoderLayer(nn.Module):
    def __init__(
        self, config: GptOssConfig, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = GptOssAttention(config, index, rotary_emb, ctx, f"{prefix}.self_attn")
        self.mlp = GptOssMLP(config, ctx, f"{prefix}.mlp")
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


class GptOssModel(nn.Module):
    def __init__(self, config: GptOssConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        self.layers = nn.ModuleList(
            GptOssDecoderLayer(config, index, rotary_emb, ctx, f"{prefix}.layers.{index}")
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


class GptOssForCausalLM(nn.Module):
    config_class = GptOssConfig
    weight_map = WEIGHT_MAP

    def __init__(self, config: GptOssConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = GptOssModel(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
