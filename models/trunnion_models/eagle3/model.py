"""EAGLE-3 draft (arXiv:2503.01840), as the authors (`cnets.py`), SGLang and vLLM (`llama_eagle3.py`) run it."""

from __future__ import annotations

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.layers.draft_vocabulary import DraftVocabulary
from trunnion.layers.linear import QKVParallelLinear, ReplicatedLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.eagle3.config import Eagle3Config
from trunnion_models.eagle3.weights import WEIGHT_MAP
from trunnion_models.gated_mlp import GatedMLP
from trunnion_models.llama.model import LlamaAttention


class Eagle3Attention(LlamaAttention):
    """Reads the embedding beside the hidden state."""

    def __init__(self, config: Eagle3Config, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str) -> None:
        super().__init__(config, rotary_emb, ctx, prefix)
        self.qkv_proj = QKVParallelLinear(
            2 * config.hidden_size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=config.attention_bias,
            ctx=ctx,
            prefix=f"{prefix}.qkv_proj",
        )


class Eagle3DecoderLayer(nn.Module):
    def __init__(self, config: Eagle3Config, rotary_emb: RotaryEmbedding, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.input_layernorm = RMSNorm(size, eps, ctx=ctx)
        self.hidden_norm = RMSNorm(size, eps, ctx=ctx)
        self.self_attn = Eagle3Attention(config, rotary_emb, ctx, f"{prefix}.self_attn")
        self.post_attention_layernorm = RMSNorm(size, eps, ctx=ctx)
        self.mlp = GatedMLP(size, config.intermediate_size, bias=config.mlp_bias, ctx=ctx, prefix=f"{prefix}.mlp")

    def forward(self, positions: torch.Tensor, embeds: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        normed = self.hidden_norm(hidden_states)
        residual = normed if self.norm_before_residual else hidden_states
        joined = torch.cat((self.input_layernorm(embeds), normed), dim=-1)  # [T, 2 * hidden_size]
        hidden_states = self.self_attn(positions, joined)
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states) + residual


class Eagle3Model(nn.Module):
    def __init__(self, config: Eagle3Config, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{prefix}.embed_tokens"
        )
        states = config.num_states * config.target_hidden_size
        self.fc = ReplicatedLinear(states, config.hidden_size, ctx=ctx, prefix=f"{prefix}.fc")
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        self.midlayer = Eagle3DecoderLayer(config, rotary_emb, ctx, f"{prefix}.midlayer")
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, ctx=ctx)


class LlamaForCausalLMEagle3(nn.Module):
    """States, the target's combined ones and its own, are those before the final norm."""

    config_class = Eagle3Config
    weight_map = WEIGHT_MAP
    shared_modules = ()

    def __init__(self, config: Eagle3Config, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = Eagle3Model(config, ctx, f"{base}model")
        self.lm_head = ParallelLMHead(config.draft_vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")
        says_all = config.draft_vocab_size == config.vocab_size
        self.draft_vocabulary = DraftVocabulary(config.draft_vocab_size, config.vocab_size)
        fits = config.hidden_size == config.target_hidden_size
        self.shared_if_absent = (("model.embed_tokens",) if fits else ()) + (("lm_head",) if fits and says_all else ())

    def combine_hidden_states(self, aux_hidden_states: torch.Tensor) -> torch.Tensor:
        return self.model.fc(aux_hidden_states)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        embeds = self.model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return self.model.midlayer(positions, embeds, hidden_states)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.draft_vocabulary(self.lm_head(self.model.norm(hidden)))
