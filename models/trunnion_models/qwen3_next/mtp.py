"""Qwen3-Next's head for multi-token prediction: one decoder layer that drafts from the decoder's hidden states.

As vLLM and SGLang (`qwen3_next_mtp.py` of both) run the published heads: the embedding comes before the hidden state,
each after a norm of its own, and hidden states, the decoder's and the head's own, are those after the final norm.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.layers.linear import ReplicatedLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.rotary_embedding import RotaryEmbedding
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.qwen3_next.config import GatedDeltaConfig, Qwen3NextConfig
from trunnion_models.qwen3_next.model import Qwen3NextDecoderLayer
from trunnion_models.qwen3_next.weights import DRAFT_WEIGHT_MAP


class Qwen3NextMTPLayers(nn.Module):
    def __init__(self, config: GatedDeltaConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = RMSNorm(size, eps, unit_offset=True, ctx=ctx)
        self.pre_fc_norm_hidden = RMSNorm(size, eps, unit_offset=True, ctx=ctx)
        self.fc = ReplicatedLinear(2 * size, size, ctx=ctx, prefix=f"{prefix}.fc")
        rotary_emb = RotaryEmbedding(config.rope, config.head_dim, config.max_position_embeddings, ctx=ctx)
        config = dataclasses.replace(config, num_hidden_layers=1, layer_types=("full_attention",))
        self.layers = nn.ModuleList([Qwen3NextDecoderLayer(config, 0, rotary_emb, ctx, f"{prefix}.layers.0")])
        self.norm = RMSNorm(size, eps, unit_offset=True, ctx=ctx)

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        joined = torch.cat((self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden_states)), dim=-1)
        hidden_states, residual = self.layers[0](positions, self.fc(joined), None)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class Qwen3NextMTP(nn.Module):
    config_class: type[GatedDeltaConfig] = Qwen3NextConfig
    weight_map = DRAFT_WEIGHT_MAP
    shared_modules = ("model.embed_tokens", "lm_head")
    layers_field = "num_nextn_predict_layers"
    """The configuration's field for the number of layers."""

    def __init__(self, config: GatedDeltaConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        count = getattr(config, self.layers_field)
        if count != 1:
            raise UnsupportedError(f"{type(self).__name__}: {self.layers_field} {count} is not supported; choices: 1")
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}model.embed_tokens"
        )
        self.mtp = Qwen3NextMTPLayers(config, ctx, f"{base}mtp")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        hidden_states: torch.Tensor,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        embeds = self.model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        return self.mtp(embeds, positions, hidden_states)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)
