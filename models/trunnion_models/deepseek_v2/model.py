"""DeepSeek-V2 decoder (arXiv:2405.04434)."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.fused_moe import FusedMoE, Router
from trunnion.layers.linear import ColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from trunnion.layers.mla import MLAAttention
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion.rope import yarn_softmax_scale_multiplier
from trunnion_models.deepseek_v2.config import DeepseekV2Config
from trunnion_models.deepseek_v2.weights import WEIGHT_MAP
from trunnion_models.gated_mlp import GatedMLP


class DeepseekV2MoE(nn.Module):
    def __init__(self, config: DeepseekV2Config, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        hidden_size, intermediate_size = config.hidden_size, config.moe_intermediate_size
        grouped = config.topk_method == "group_limited_greedy"
        self.gate = Router(hidden_size, config.n_routed_experts, ctx=ctx, prefix=f"{prefix}.gate")
        self.experts = FusedMoE(
            config.n_routed_experts,
            config.num_experts_per_tok,
            hidden_size,
            intermediate_size,
            renormalize=False,
            num_expert_group=config.n_group if grouped else None,
            topk_group=config.topk_group if grouped else None,
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
        out = self.experts(x, self.gate(x))
        if self.shared_experts is not None:
            out = out + self.shared_experts(x)
        # One sum over the ranks for both.
        return self.collectives.all_reduce(out)


class DeepseekV2Attention(nn.Module):
    def __init__(self, config: DeepseekV2Config, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        hidden_size, num_heads, bias = config.hidden_size, config.num_attention_heads, config.attention_bias
        nope, rope, rank = config.qk_nope_head_dim, config.qk_rope_head_dim, config.kv_lora_rank
        q_size = num_heads * (nope + rope)
        self.q_lora_rank = config.q_lora_rank
        if config.q_lora_rank is None:
            self.q_proj = ColumnParallelLinear(hidden_size, q_size, ctx=ctx, prefix=f"{prefix}.q_proj")
        else:
            self.q_a_proj = ReplicatedLinear(
                hidden_size, config.q_lora_rank, bias=bias, ctx=ctx, prefix=f"{prefix}.q_a_proj"
            )
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, 1e-6, ctx=ctx)
            self.q_b_proj = ColumnParallelLinear(config.q_lora_rank, q_size, ctx=ctx, prefix=f"{prefix}.q_b_proj")
        self.kv_a_proj_with_mqa = ReplicatedLinear(
            hidden_size, rank + rope, bias=bias, ctx=ctx, prefix=f"{prefix}.kv_a_proj_with_mqa"
        )
        self.kv_a_layernorm = RMSNorm(rank, 1e-6, ctx=ctx)
        self.kv_b_proj = ColumnParallelLinear(
            rank, num_heads * (nope + config.v_head_dim), ctx=ctx, prefix=f"{prefix}.kv_b_proj"
        )
        self.o_proj = RowParallelLinear(
            num_heads * config.v_head_dim, hidden_size, bias=bias, ctx=ctx, prefix=f"{prefix}.o_proj"
        )
        self.q_split, self.kv_split = (nope, rope), (rank, rope)
        self.rotary_emb = rotary_emb
        self.attn = MLAAttention(
            num_heads,
            nope,
            rope,
            config.v_head_dim,
            rank,
            (nope + rope) ** -0.5 * yarn_softmax_scale_multiplier(config.rope),
            kv_b_proj=self.kv_b_proj,
            ctx=ctx,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        if self.q_lora_rank is None:
            q = self.q_proj(hidden_states)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        q_nope, q_pe = q.unflatten(-1, (-1, sum(self.q_split))).split(self.q_split, dim=-1)  # [T, H, D]
        latent, k_pe = self.kv_a_proj_with_mqa(hidden_states).split(self.kv_split, dim=-1)
        q_pe, k_pe = self.rotary_emb(positions, q_pe, k_pe.unsqueeze(1))
        return self.o_proj(self.attn(q_nope, q_pe, self.kv_a_layernorm(latent), k_pe.squeeze(1)))


class DeepseekV2DecoderLayer(nn.Module):
    def __init__(
        self, config: DeepseekV2Config, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = DeepseekV2Attention(config, rotary_emb, ctx, f"{prefix}.self_attn")
        if index >= config.first_k_dense_replace:
            self.mlp: nn.Module = DeepseekV2MoE(config, ctx, f"{prefix}.mlp")
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


class DeepseekV2Model(nn.Module):
    def __init__(self, config: DeepseekV2Config, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        rotary_emb = RotaryEmbedding(
            config.rope, config.qk_rope_head_dim, config.max_position_embeddings, interleaved=True, ctx=ctx
        )
        self.layers = nn.ModuleList(
            DeepseekV2DecoderLayer(config, index, rotary_emb, ctx, f"{prefix}.layers.{index}")
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


class DeepseekV2ForCausalLM(nn.Module):
    config_class = DeepseekV2Config
    weight_map = WEIGHT_MAP

    def __init__(self, config: DeepseekV2Config, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = DeepseekV2Model(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
