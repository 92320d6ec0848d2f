"""DeepSeek-V3 decoder (arXiv:2412.19437): DeepSeek-V2's attention, experts balanced by a bias for their choice."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.fused_moe import FusedMoE, Router
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.deepseek_v2.model import DeepseekV2Attention
from trunnion_models.deepseek_v3.config import DeepseekV3Config
from trunnion_models.deepseek_v3.weights import WEIGHT_MAP
from trunnion_models.gated_mlp import GatedMLP


class SparseConfig(Protocol):
    """What experts are read from; families that took DeepSeek-V3's have the same fields."""

    hidden_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float


class DeepseekV3MoE(nn.Module):
    def __init__(self, config: SparseConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        hidden_size, intermediate_size = config.hidden_size, config.moe_intermediate_size
        self.gate = Router(hidden_size, config.n_routed_experts, correction_bias=True, ctx=ctx, prefix=f"{prefix}.gate")
        self.experts = FusedMoE(
            config.n_routed_experts,
            config.num_experts_per_tok,
            hidden_size,
            intermediate_size,
            renormalize=config.norm_topk_prob,
            num_expert_group=config.n_group,
            topk_group=config.topk_group,
            routed_scaling_factor=config.routed_scaling_factor,
            reduce_results=False,
            ctx=ctx,
            prefix=f"{prefix}.experts",
        )
        self.shared_experts: GatedMLP | None = None
        if config.n_shared_experts:
            size = intermediate_size * config.n_shared_experts
            self.shared_experts = GatedMLP(
                hidden_size, size, reduce_results=False, ctx=ctx, prefix=f"{prefix}.shared_experts"
            )
        self.collectives = ctx.parallel.collectives

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.experts(x, self.gate(x), self.gate.e_score_correction_bias)
        if self.shared_experts is not None:
            out = out + self.shared_experts(x)
        # One sum over the ranks for both.
        return self.collectives.all_reduce(out)


class DeepseekV3DecoderLayer(nn.Module):
    def __init__(
        self, config: DeepseekV3Config, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = DeepseekV2Attention(config, rotary_emb, ctx, f"{prefix}.self_attn")
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


def rotary_embedding(config: DeepseekV3Config, ctx: BuildContext) -> RotaryEmbedding:
    return RotaryEmbedding(
        config.rope,
        config.qk_rope_head_dim,
        config.max_position_embeddings,
        interleaved=config.rope_interleave,
        ctx=ctx,
    )


class DeepseekV3Model(nn.Module):
    def __init__(self, config: DeepseekV3Config, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = rotary_embedding(config, ctx)
        self.layers = nn.ModuleList(
            DeepseekV3DecoderLayer(config, index, rotary_emb, ctx, f"{prefix}.layers.{index}")
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


class DeepseekV3ForCausalLM(nn.Module):
    config_class = DeepseekV3Config
    weight_map = WEIGHT_MAP

    def __init__(self, config: DeepseekV3Config, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = DeepseekV3Model(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
