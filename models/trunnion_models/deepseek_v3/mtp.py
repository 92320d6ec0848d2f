"""DeepSeek-V3's head for multi-token prediction: one decoder layer that drafts from the decoder's hidden states.

As SGLang (`deepseek_nextn.py`) runs the published heads: the embedding comes before the hidden state, each after a norm
of its own, and hidden states, the decoder's and the head's own, are those after the final norm. vLLM's
`deepseek_mtp.py` takes the head's own before it, from the second draft on, and zeros for the embedding at position 0:
drafts may differ, text does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.layers.linear import ReplicatedLinear
from trunnion.layers.norm import RMSNorm
from trunnion.layers.vocab_embedding import ParallelLMHead, VocabParallelEmbedding
from trunnion_models.deepseek_v3.config import DeepseekV3Config
from trunnion_models.deepseek_v3.model import DeepseekV3DecoderLayer, rotary_embedding
from trunnion_models.deepseek_v3.weights import DRAFT_WEIGHT_MAP


class MTPHead(nn.Module):
    """Around a decoder layer of any family whose checkpoints name the head's tensors as DeepSeek-V3's do."""

    def __init__(self, hidden_size: int, eps: float, decoder: nn.Module, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.enorm = RMSNorm(hidden_size, eps, ctx=ctx)
        self.hnorm = RMSNorm(hidden_size, eps, ctx=ctx)
        # Published unquantised beside a decoder layer in float8, which no configuration says.
        plain = dataclasses.replace(ctx, quantization=None)
        self.eh_proj = ReplicatedLinear(2 * hidden_size, hidden_size, ctx=plain, prefix=f"{prefix}.eh_proj")
        self.layers = nn.ModuleList([decoder])
        self.norm = RMSNorm(hidden_size, eps, ctx=ctx)

    def forward(self, embeds: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        joined = torch.cat((self.enorm(embeds), self.hnorm(hidden_states)), dim=-1)
        hidden_states, residual = self.layers[0](positions, self.eh_proj(joined), None)
        hidden_states, _ = self.norm(hidden_states, residual)
        return hidden_states


class DeepseekV3MTP(nn.Module):
    config_class: type[Any] = DeepseekV3Config
    weight_map = DRAFT_WEIGHT_MAP
    shared_modules = ("model.embed_tokens", "lm_head")

    def __init__(self, config: Any, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__()
        if config.num_nextn_predict_layers != 1:
            raise UnsupportedError(
                f"{type(self).__name__}: num_nextn_predict_layers {config.num_nextn_predict_layers} is not supported; "
                "choices: 1"
            )
        base = f"{prefix}." if prefix else ""
        self.config = config
        self.model = nn.Module()
        self.model.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}model.embed_tokens"
        )
        decoder = self.decoder_layer(config, ctx, f"{base}mtp.layers.0")
        self.mtp = MTPHead(config.hidden_size, config.rms_norm_eps, decoder, ctx, f"{base}mtp")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, ctx=ctx, prefix=f"{base}lm_head")

    def decoder_layer(self, config: Any, ctx: BuildContext, prefix: str) -> nn.Module:
        """The family's own, as the layer after the decoder's last one."""
        return DeepseekV3DecoderLayer(config, config.num_hidden_layers, rotary_embedding(config, ctx), ctx, prefix)

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
