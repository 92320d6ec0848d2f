"""Qwen3-Next decoder: gated delta nets (arXiv:2412.06464) and gated attention, each before sparse experts."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.attention import Attention
from trunnion.layers.fused_moe import FusedMoE, Router
from trunnion.layers.gated_delta_net import GatedDeltaNet
from trunnion.layers.linear import QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.gated_mlp import GatedMLP
from trunnion_models.qwen3_next.config import GatedDeltaConfig, Qwen3NextConfig
from trunnion_models.qwen3_next.weights import WEIGHT_MAP


class Qwen3NextSparseMoeBlock(nn.Module):
    def __init__(self, config: Qwen3NextConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size
        self.gate = Router(size, config.num_experts, ctx=ctx, prefix=f"{prefix}.gate")
        self.experts = FusedMoE(
            config.num_experts,
            config.num_experts_per_tok,
            size,
            config.moe_intermediate_size,
            renormalize=config.norm_topk_prob,
            reduce_results=False,
            ctx=ctx,
            prefix=f"{prefix}.experts",
        )
        self.shared_expert = GatedMLP(
            size,
            config.shared_expert_intermediate_size,
            reduce_results=False,
            ctx=ctx,
            prefix=f"{prefix}.shared_expert",
        )
        self.shared_expert_gate = ReplicatedLinear(size, 1, ctx=ctx, prefix=f"{prefix}.shared_expert_gate")
        self.collectives = ctx.parallel.collectives

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shared = self.shared_expert(x) * self.shared_expert_gate(x).sigmoid()
        # One sum over the ranks for both.
        return self.collectives.all_reduce(self.experts(x, self.gate(x)) + shared)


class Qwen3NextAttention(nn.Module):
    def __init__(self, config: GatedDeltaConfig, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        hidden_size, head_dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        num_heads, num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        # Each query head comes with a gate of the same size for its output.
        self.qkv_proj = QKVParallelLinear(
            hidden_size,
            head_dim,
            num_heads,
            num_kv_heads,
            q_head_dim=2 * head_dim,
            bias=bias,
            ctx=ctx,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            num_heads * head_dim, hidden_size, bias=bias, ctx=ctx, prefix=f"{prefix}.o_proj"
        )
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, unit_offset=True, ctx=ctx)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, unit_offset=True, ctx=ctx)
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
        q, gate = q.unflatten(-1, (-1, 2 * self.head_dim)).chunk(2, dim=-1)  # [T, H, D] each
        k = k.unflatten(-1, (-1, self.head_dim))
        rotation = self.rotary_emb.at(positions)
        return self.o_proj(self.attn(self.q_norm(q), self.k_norm(k), v, rotation) * gate.flatten(1).sigmoid())


class Qwen3NextDecoderLayer(nn.Module):
    def __init__(
        self, config: GatedDeltaConfig, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.layer_type = config.layer_types[index]
        if self.layer_type == "linear_attention":
            self.linear_attn = GatedDeltaNet(
                size,
                config.linear_num_key_heads,
                config.linear_num_value_heads,
                config.linear_key_head_dim,
                config.linear_value_head_dim,
                config.linear_conv_kernel_dim,
                eps,
                separate_projections=config.separate_projections,
                ctx=ctx,
                prefix=f"{prefix}.linear_attn",
            )
        else:
            self.self_attn = Qwen3NextAttention(config, rotary_emb, ctx, f"{prefix}.self_attn")
        if config.is_sparse(index):
            self.mlp: nn.Module = Qwen3NextSparseMoeBlock(config, ctx, f"{prefix}.mlp")
        else:
            self.mlp = GatedMLP(size, config.intermediate_size, ctx=ctx, prefix=f"{prefix}.mlp")
        self.input_layernorm = RMSNorm(size, eps, unit_offset=True, ctx=ctx)
        self.post_attention_layernorm = RMSNorm(size, eps, unit_offset=True, ctx=ctx)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        if self.layer_type == "full_attention":
            hidden_states = self.self_attn(positions, hidden_states)
        else:
            hidden_states = self.linear_attn(hidden_states)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class Qwen3NextModel(nn.Module):
    def __init__(self, config: GatedDeltaConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        self.layers = nn.ModuleList(
            Qwen3NextDecoderLayer(config, index, rotary_emb, ctx, f"{prefix}.layers.{index}")
            for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, unit_offset=True, ctx=ctx)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        hidden_states = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class Qwen3NextForCausalLM(nn.Module):
    config_class: type[GatedDeltaConfig] = Qwen3NextConfig
    weight_map = WEIGHT_MAP

    def __init__(self, config: GatedDeltaConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = Qwen3NextModel(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
