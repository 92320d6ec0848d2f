"""The truth for drafts of DeepSeek-V3 and of those who took its head, around transformers' own decoder layers.

What it computes is what SGLang's `deepseek_nextn.py` computes: row p takes the token at p + 1 and the target's hidden
state at p after its final norm; each is normalised by a norm of its own, embedding first; the position is p; and the
state after the head's own final norm is what the next draft takes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
from transformers.models.glm4_moe import modeling_glm4_moe as glm4_moe

PARTS = {
    "deepseek_v3": (
        deepseek_v3.DeepseekV3DecoderLayer, deepseek_v3.DeepseekV3RMSNorm, deepseek_v3.DeepseekV3RotaryEmbedding,
    ),
    "glm4_moe": (glm4_moe.Glm4MoeDecoderLayer, glm4_moe.Glm4MoeRMSNorm, glm4_moe.Glm4MoeRotaryEmbedding),
}  # fmt: skip
OWN = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "norm": "shared_head.norm"}
"""Modules here, and how published checkpoints call them; the others are those of the decoder layer."""


class DeepseekMTPReference(nn.Module):
    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        own = copy.deepcopy(config)
        own._attn_implementation = "eager"
        layer, norm, rope = PARTS[own.model_type]
        size, eps = own.hidden_size, own.rms_norm_eps
        self.enorm, self.hnorm, self.norm = (norm(size, eps=eps) for _ in range(3))
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        self.decoder = layer(own, own.num_hidden_layers)
        self.rotary_emb = rope(config=own)
        self.prefix = f"model.layers.{own.num_hidden_layers}"

    def forward(self, embeds: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Embeddings of the tokens at 1 ... S, hidden states at 0 ... S - 1, both [B, S, H] -> [B, S, H]."""
        x = self.eh_proj(torch.cat((self.enorm(embeds), self.hnorm(hidden)), dim=-1))
        positions = torch.arange(x.shape[1], device=x.device).unsqueeze(0)
        future = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        x = self.decoder(
            x,
            attention_mask=future[None, None],
            position_ids=positions,
            position_embeddings=self.rotary_emb(x, positions),
        )
        return self.norm(x)

    def load_published(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the head's tensors out of a checkpoint; the inverse of `published`."""
        own = {}
        for name, tensor in self.state_dict().items():
            stored = self._stored(name)
            base = stored.rpartition(".")[0]
            if name.endswith("experts.gate_up_proj"):
                pairs = [
                    [tensors[f"{base}.{e}.{part}_proj.weight"] for part in ("gate", "up")] for e in range(len(tensor))
                ]
                own[name] = torch.stack([torch.cat(pair) for pair in pairs])
            elif name.endswith("experts.down_proj"):
                own[name] = torch.stack([tensors[f"{base}.{e}.down_proj.weight"] for e in range(len(tensor))])
            else:
                own[name] = tensors[stored]
        self.load_state_dict(own)

    def published(self, target: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The head's tensors as published checkpoints name them, one per expert, and copies of the `target`'s."""
        tensors = {f"{self.prefix}.embed_tokens.weight": target["model.embed_tokens.weight"].clone()}
        if "lm_head.weight" in target:
            tensors[f"{self.prefix}.shared_head.head.weight"] = target["lm_head.weight"].clone()
        for name, tensor in self.state_dict().items():
            stored = self._stored(name)
            base = stored.rpartition(".")[0]
            if name.endswith("experts.gate_up_proj"):
                for expert, (gate, up) in enumerate(pair.chunk(2) for pair in tensor):
                    tensors |= {
                        f"{base}.{expert}.gate_proj.weight": gate, f"{base}.{expert}.up_proj.weight": up
                    }  # fmt: skip
            elif name.endswith("experts.down_proj"):
                for expert, down in enumerate(tensor):
                    tensors[f"{base}.{expert}.down_proj.weight"] = down
            else:
                tensors[stored] = tensor
        return {name: tensor.detach().contiguous() for name, tensor in tensors.items()}

    def _stored(self, name: str) -> str:
        module, _, rest = name.partition(".")
        return f"{self.prefix}.{rest}" if module == "decoder" else f"{self.prefix}.{OWN[module]}.{rest}"
