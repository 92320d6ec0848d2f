"""Qwen2-MoE decoder (arXiv:2407.10671): Qwen2's attention before sparse experts and a shared one behind a gate."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.fused_moe import FusedMoE, Router
from trunnion.layers.linear import ReplicatedLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.gated_mlp import GatedMLP
from trunnion_models.qwen2.model import Qwen2Attention
from trunnion_models.qwen2_moe.config import Qwen2MoeConfig
from trunnion_models.qwen2_moe.weights import WEIGHT_MAP


class Qwen2MoeSparseMoeBlock(nn.Module):
    def __init__(self, config: Qwen2MoeConfig, ctx: BuildContext, prefix: str) -> None:
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


class Qwen2MoeDecoderLayer(nn.Module):
    def __init__(
        self, config: Qwen2MoeConfig, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = Qwen2Attention(config, index, rotary_emb, ctx, f"{prefix}.self_attn")
        if config.is_sparse(index):
            self.mlp: nn.Module = Qwen2MoeSparseMoeBlock(config, ctx, f"{prefix}.mlp")
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


class Qwen2MoeModel(nn.Module):
    def __init__(self, config: Qwen2MoeConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        self.layers = nn.ModuleList(
            Qwen2MoeDecoderLayer(config, index, rotary_emb, ctx, f"{prefix}.layers.{index}")
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


class Qwen2MoeForCausalLM(nn.Module):
    config_class = Qwen2MoeConfig
    weight_map = WEIGHT_MAP

    def __init__(self, config: Qwen2MoeConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = Qwen2MoeModel(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
