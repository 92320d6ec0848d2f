"""Qwen3-Next configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, family, integer, layer_types, num_layers, read_fields, require

LAYER_TYPES = ("full_attention", "linear_attention")
DEFAULTS = {"max_position_embeddings": 32768, "partial_rotary_factor": 0.25}


@dataclass(frozen=True, kw_only=True)
class GatedDeltaConfig:
    """What decoders of gated delta nets and gated attention have in common, whatever comes after these."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    layer_types: tuple[str, ...]
    max_position_embeddings: int
    linear_conv_kernel_dim: int = 4
    linear_key_head_dim: int = 128
    linear_value_head_dim: int = 128
    linear_num_key_heads: int = 16
    linear_num_value_heads: int = 32
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    separate_projections: ClassVar[bool] = False
    """See GatedDeltaNet."""

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    def is_sparse(self, index: int) -> bool:
        """Whether layer `index` has experts."""
        raise NotImplementedError

    @classmethod
    def common_fields(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that are derived from others in a `config.json`, ropes apart."""
        interval = integer(config, "full_attention_interval", 4)
        default = [LAYER_TYPES[bool((index + 1) % interval)] for index in range(num_layers(config))]
        return {"layer_types": layer_types(config, default, LAYER_TYPES), **attention_heads(config, 256)}


@dataclass(frozen=True, kw_only=True)
class Qwen3NextConfig(GatedDeltaConfig):
    intermediate_size: int
    mlp_only_layers: tuple[int, ...]
    """Layers with a dense MLP where the others have experts."""
    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    num_experts: int = 512
    num_experts_per_tok: int = 10
    decoder_sparse_step: int = 1
    norm_topk_prob: bool = True
    num_nextn_predict_layers: int = 1
    """Layers of the head that drafts; published configurations do not say that there is one."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen3NextConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {**DEFAULTS, "num_key_value_heads": 2, **config}
        result = cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config, takes_partial=True),
                mlp_only_layers=tuple(config.get("mlp_only_layers") or ()),
                num_nextn_predict_layers=integer(config, "num_nextn_predict_layers", 1, zero_allowed=True),
                **cls.common_fields(config),
            )
        )
        check_experts(config, result.num_experts, result.num_experts_per_tok)
        return result

    def is_sparse(self, index: int) -> bool:
        """Whether layer `index` has experts."""
        return index not in self.mlp_only_layers and (index + 1) % self.decoder_sparse_step == 0


def check_experts(config: Mapping[str, Any], num_experts: int, num_experts_per_tok: int) -> None:
    """ConfigError if a token is to choose more experts than there are."""
    if num_experts_per_tok > num_experts:
        raise ConfigError(
            f"config of {family(config)}: num_experts_per_tok {num_experts_per_tok} is above num_experts {num_experts}"
        )
