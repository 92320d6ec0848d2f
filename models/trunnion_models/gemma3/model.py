"""Gemma 3 text decoder (arXiv:2503.19786)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.activation import GeluTanhAndMul
from trunnion.layers.attention import Attention
from trunnion.layers.linear import QKVParallelLinear, RowParallelLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.gated_mlp import GatedMLP
from trunnion_models.gemma3.config import Gemma3Config, Gemma3TextConfig
from trunnion_models.gemma3.weights import WEIGHT_MAP


class Gemma3Attention(nn.Module):
    def __init__(
        self, config: Gemma3TextConfig, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
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
        self.q_norm = RMSNorm(head_dim, config.rms_norm_eps, unit_offset=True, ctx=ctx)
        self.k_norm = RMSNorm(head_dim, config.rms_norm_eps, unit_offset=True, ctx=ctx)
        self.head_dim = head_dim
        self.rotary_emb = rotary_emb
        self.attn = Attention(
            self.qkv_proj.num_heads,
            head_dim,
            self.qkv_proj.num_kv_heads,
            config.query_pre_attn_scalar**-0.5,
            window=config.windows[index],
            ctx=ctx,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.qkv_proj.q_size, self.qkv_proj.kv_size, self.qkv_proj.kv_size], dim=-1)
        q, k = q.unflatten(-1, (-1, self.head_dim)), k.unflatten(-1, (-1, self.head_dim))  # [T, H, D]
        rotation = self.rotary_emb.at(positions)
        return self.o_proj(self.attn(self.q_norm(q), self.k_norm(k), v, rotation))


class Gemma3DecoderLayer(nn.Module):
    def __init__(
        self, config: Gemma3TextConfig, index: int, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__()
        self.self_attn = Gemma3Attention(config, index, rotary_emb, ctx, f"{prefix}.self_attn")
        self.mlp = GatedMLP(
            config.hidden_size, config.intermediate_size, act_fn=GeluTanhAndMul(), ctx=ctx, prefix=f"{prefix}.mlp"
        )
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps, unit_offset=True, ctx=ctx)
        self.post_attention_layernorm = RMSNorm(size, eps, unit_offset=True, ctx=ctx)
        self.pre_feedforward_layernorm = RMSNorm(size, eps, unit_offset=True, ctx=ctx)
        self.post_feedforward_layernorm = RMSNorm(size, eps, unit_offset=True, ctx=ctx)

    def forward(
        self, positions: torch.Tensor, hidden_states: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            residual, hidden_states = hidden_states, self.input_layernorm(hidden_states)
        else:
            hidden_states, residual = self.input_layernorm(hidden_states, residual)
        hidden_states = self.post_attention_layernorm(self.self_attn(positions, hidden_states))
        hidden_states, residual = self.pre_feedforward_layernorm(hidden_states, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden_states)), residual


class Gemma3TextModel(nn.Module):
    def __init__(self, config: Gemma3TextConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        # Rounded to the model's dtype, as the published models were trained.
        self.embed_scale = torch.tensor(config.hidden_size**0.5, dtype=ctx.dtype, device="cpu").item()
        ropes: Mapping[str, RotaryEmbedding] = {
            kind: RotaryEmbedding(rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
            for kind, rope in config.ropes.items()
        }
        self.layers = nn.ModuleList(
            Gemma3DecoderLayer(config, index, ropes[kind], ctx, f"{prefix}.layers.{index}")
            for index, kind in enumerate(config.layer_types)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, unit_offset=True, ctx=ctx)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None
    ) -> torch.Tensor:
        hidden_states = self.embed_tokens(input_ids) * self.embed_scale if inputs_embeds is None else inputs_embeds
        residual = None
        for layer in self.layers:
            hidden_states, residual = layer(positions, hidden_states, residual)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class Gemma3ForCausalLM(nn.Module):
    config_class = Gemma3TextConfig
    weight_map = WEIGHT_MAP

    def __init__(self, config: Gemma3TextConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = Gemma3TextModel(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        if config.tie_word_embeddings:
            self.lm_head.tie_to(self.model.embed_tokens)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, inputs_embeds: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.model(input_ids, positions, inputs_embeds)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.lm_head(hidden)
        cap = self.config.final_logit_softcapping
        return logits if cap is None else torch.tanh(logits / cap) * cap


class Gemma3ForConditionalGeneration(Gemma3ForCausalLM):
    """The text of a model that sees."""

    config_class = Gemma3Config
