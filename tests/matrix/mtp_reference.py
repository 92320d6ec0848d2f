"""The truth for drafts: the MTP head of Qwen3-Next and Qwen3.5 in plain torch, around transformers' own decoder layer.

What it computes is what vLLM (`qwen3_next_mtp.py`, `qwen3_5_mtp.py`) and SGLang (`qwen3_next_mtp.py`) compute: row p
takes the token at p + 1 and the target's hidden state at p after its final norm; each is normalised by a norm of its
own, embedding first; the position is p; and the state after the head's own final norm is what the next draft takes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.qwen3_5 import modeling_qwen3_5 as dense
from transformers.models.qwen3_5_moe import modeling_qwen3_5_moe as sparse
from transformers.models.qwen3_next import modeling_qwen3_next as hybrid

PARTS: dict[str, tuple[type[nn.Module], type[nn.Module], type[nn.Module]]] = {
    "qwen3_next": (hybrid.Qwen3NextDecoderLayer, hybrid.Qwen3NextRMSNorm, hybrid.Qwen3NextRotaryEmbedding),
    "qwen3_5_text": (dense.Qwen3_5DecoderLayer, dense.Qwen3_5RMSNorm, dense.Qwen3_5TextRotaryEmbedding),
    "qwen3_5_moe_text": (
        sparse.Qwen3_5MoeDecoderLayer,
        sparse.Qwen3_5MoeRMSNorm,
        sparse.Qwen3_5MoeTextRotaryEmbedding,
    ),
}
"""Decoder layer, norm and rope of the families, by model type."""


class MTPReference(nn.Module):
    """Parameters are named as published, without the leading `mtp.`; experts are stacked as transformers does."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        own = copy.deepcopy(config)
        own.num_hidden_layers, own.layer_types = 1, ["full_attention"]
        own._attn_implementation = "eager"
        size, eps = own.hidden_size, own.rms_norm_eps
        decoder_layer, norm, rope = PARTS[own.model_type]
        self.fc = nn.Linear(2 * size, size, bias=False)
        self.pre_fc_norm_embedding = norm(size, eps=eps)
        self.pre_fc_norm_hidden = norm(size, eps=eps)
        self.layers = nn.ModuleList([decoder_layer(own, 0)])
        self.norm = norm(size, eps=eps)
        self.rotary_emb = rope(config=own)

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Embeddings of the tokens at 1 ... S, hidden states at 0 ... S - 1, both [B, S, H] -> [B, S, H]."""
        joined = torch.cat((self.pre_fc_norm_embedding(embeds), self.pre_fc_norm_hidden(hidden)), dim=-1)
        x = self.fc(joined)
        positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        future = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        x = self.layers[0](
            x,
            position_embeddings=self.rotary_emb(x, positions),
            attention_mask=future[None, None],
            position_ids=positions,
        )
        return self.norm(x)

    def load_published(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the head's tensors out of a checkpoint; the inverse of `published`."""
        own = {}
        for name, tensor in self.state_dict().items():
            base = f"mtp.{name}".rpartition(".")[0]
            if name.endswith("experts.gate_up_proj"):
                pairs = [
                    [tensors[f"{base}.{e}.{part}_proj.weight"] for part in ("gate", "up")] for e in range(len(tensor))
                ]
                own[name] = torch.stack([torch.cat(pair) for pair in pairs])
            elif name.endswith("experts.down_proj"):
                own[name] = torch.stack([tensors[f"{base}.{e}.down_proj.weight"] for e in range(len(tensor))])
            else:
                own[name] = tensors[f"mtp.{name}"]
        self.load_state_dict(own)

    def published(self, target: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The head's tensors as published checkpoints name them, one per expert; none are copies of the `target`'s."""
        tensors: dict[str, torch.Tensor] = {}
        for name, tensor in self.state_dict().items():
            if name.endswith("experts.gate_up_proj"):
                for expert, (gate, up) in enumerate(pair.chunk(2) for pair in tensor):
                    base = f"mtp.{name.removesuffix('gate_up_proj')}{expert}"
                    tensors |= {f"{base}.gate_proj.weight": gate, f"{base}.up_proj.weight": up}
            elif name.endswith("experts.down_proj"):
                for expert, down in enumerate(tensor):
                    tensors[f"mtp.{name}".replace("down_proj", f"{expert}.down_proj.weight")] = down
            else:
                tensors[f"mtp.{name}"] = tensor
        return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
