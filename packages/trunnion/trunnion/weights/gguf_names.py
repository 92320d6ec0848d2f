"""Tensor names of GGUF files and the Hugging Face names and layouts they stand for.

llama.cpp's converter permutes the rows of q and k of `llama` models (it rotates neighbouring pairs) and stores Gemma's
norm weights with their offset of one added; both are undone here. Source: `convert_hf_to_gguf.py` of llama.cpp.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_GEMMA3 = {
    **_LAYER,
    **_HEAD_NORMS,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, kw_only=True)
class GGUFArchitecture:
    """One `general.architecture`: how its tensors are called and what the converter did to them."""

    model_type: str
    hf_class: str
    layer_names: Mapping[str, str]
    permuted: bool = False
    """Rows of q and k are permuted."""
    norm_offset: bool = False
    """Norm weights were stored with 1 added."""

    def hf_name(self, name: str) -> str | None:
        """The Hugging Face name, or None if the architecture has no such tensor."""
        stem, _, leaf = name.rpartition(".")
        if leaf not in ("weight", "bias"):
            return None
        if stem in _TOP:
            return f"{_TOP[stem]}.{leaf}"
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        if match is None or match[2] not in self.layer_names:
            return None
        return f"model.layers.{match[1]}.{self.layer_names[match[2]]}.{leaf}"

    def restore(self, hf_name: str, tensor: torch.Tensor, num_heads: int, num_kv_heads: int) -> torch.Tensor:
        """`tensor` as Hugging Face stores it; a new tensor where it had to change."""
        if self.norm_offset and hf_name.endswith("norm.weight"):
            return tensor.float() - 1.0
        if self.permuted and ".q_proj." in hf_name:
            return _unpermute(tensor, num_heads)
        if self.permuted and ".k_proj." in hf_name:
            return _unpermute(tensor, num_kv_heads)
        return tensor


ARCHITECTURES: Mapping[str, GGUFArchitecture] = {
    "llama": GGUFArchitecture(model_type="llama", hf_class="LlamaForCausalLM", layer_names=_LAYER, permuted=True),
    "qwen2": GGUFArchitecture(model_type="qwen2", hf_class="Qwen2ForCausalLM", layer_names=_LAYER),
    "qwen3": GGUFArchitecture(model_type="qwen3", hf_class="Qwen3ForCausalLM", layer_names={**_LAYER, **_HEAD_NORMS}),
    "gemma3": GGUFArchitecture(
        model_type="gemma3_text", hf_class="Gemma3ForCausalLM", layer_names=_GEMMA3, norm_offset=True
    ),
}


def _unpermute(tensor: torch.Tensor, num_heads: int) -> torch.Tensor:
    """[heads, pairs, 2, ...] back to [heads, 2, pairs, ...]: halves are rotated, not neighbours."""
    rows = tensor.shape[0]
    split = tensor.reshape(num_heads, rows // num_heads // 2, 2, *tensor.shape[1:])
    return split.transpose(1, 2).reshape(tensor.shape)
