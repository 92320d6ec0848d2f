"""GLM-4-MoE configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.rope import RopeParameters, read_rope
from trunnion_models.deepseek_v3.config import check_routing
from trunnion_models.fields import attention_heads, family, read_fields, require


@dataclass(frozen=True, kw_only=True)
class Glm4MoeConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    max_position_embeddings: int
    moe_intermediate_size: int = 1408
    n_routed_experts: int = 128
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    n_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: int = 1
    """Layers before this one have a dense MLP."""
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    use_qk_norm: bool = False
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    """Of q, k and v; the output has none."""
    tie_word_embeddings: bool = False
    num_nextn_predict_layers: int = 1
    """Layers of the head that drafts, if the checkpoint has one; they are numbered after the decoder's."""

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Glm4MoeConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        require(config, "topk_method", "noaux_tc", ["noaux_tc"])
        require(config, "scoring_func", "sigmoid", ["sigmoid"])
        require(config, "num_nextn_predict_layers", 1, [0, 1])
        defaults = {"max_position_embeddings": 131072, "num_key_value_heads": 8, "partial_rotary_factor": 0.5}
        config = {**defaults, **config}
        heads = config.get("num_nextn_predict_layers", 1)
        result = cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config, takes_partial=True),
                num_nextn_predict_layers=heads,
                **attention_heads(config),
            )
        )
        check_routing(
            family(config), result.n_routed_experts, result.num_experts_per_tok, result.n_group, result.topk_group
        )
        return result
