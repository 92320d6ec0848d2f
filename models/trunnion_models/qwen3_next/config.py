"""Qwen3-Next configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, family, layer_types, num_layers, read_fields, require

LAYER_TYPES = ("full_attention", "linear_attention")


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    layer_types: tuple[str, ...]
    mlp_only_layers: tuple[int, ...]
    """Layers with a dense MLP where the others have experts."""
    max_position_embeddings: int
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    num_experts: int = 512
    num_experts_per_tok: int = 10
    decoder_sparse_step: int = 1
    norm_topk_prob: bool = True
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = 1
    """Layers of the head that drafts, if the checkpoint has one."""

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen3NextConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 32768, "partial_rotary_factor": 0.25, **config}
        interval = config.get("full_attention_interval", 4)
        default = [LAYER_TYPES[bool((index + 1) % interval)] for index in range(num_layers(config))]
        result = cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config),
                layer_types=layer_types(config, default, LAYER_TYPES),
                mlp_only_layers=tuple(config.get("mlp_only_layers") or ()),
                **attention_heads(config, 256),
            )
        )
        if result.num_experts_per_tok > result.num_experts:
            raise ConfigError(
                f"config of {family(config)}: num_experts_per_tok {result.num_experts_per_tok} is above "
                f"num_experts {result.num_experts}"
            )
        return result

    def is_sparse(self, index: int) -> bool:
        """Whether layer `index` has experts."""
        return index not in self.mlp_only_layers and (index + 1) % self.decoder_sparse_step == 0
