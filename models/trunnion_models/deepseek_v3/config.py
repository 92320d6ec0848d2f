"""DeepSeek-V3 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import read_rope
from trunnion_models.deepseek_v2.config import DeepseekV2Config
from trunnion_models.fields import family, read_fields, require


@dataclass(frozen=True, kw_only=True)
class DeepseekV3Config(DeepseekV2Config):
    """As DeepSeek-V2, whose `topk_method` is `noaux_tc` here."""

    n_shared_experts: int = 1
    first_k_dense_replace: int = 3
    routed_scaling_factor: float = 2.5
    n_group: int = 8
    topk_group: int = 4
    norm_topk_prob: bool = True
    rope_interleave: bool = True
    """Whether pairs that are rotated lie side by side, as published, or half a head apart."""
    num_nextn_predict_layers: int = 1
    """Layers of the head that drafts, if the checkpoint has one; they are numbered after the decoder's."""

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DeepseekV3Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        require(config, "topk_method", "noaux_tc", ["noaux_tc"])
        require(config, "scoring_func", "sigmoid", ["sigmoid"])
        require(config, "moe_layer_freq", 1, [1])
        require(config, "num_nextn_predict_layers", 1, [0, 1])
        config = {"max_position_embeddings": 4096, "q_lora_rank": 1536, **config}
        fixed = {"topk_method": "noaux_tc", "num_nextn_predict_layers": config.get("num_nextn_predict_layers", 1)}
        result = cls(**read_fields(cls, config, rope=read_rope(config), **fixed))
        check_routing(
            family(config), result.n_routed_experts, result.num_experts_per_tok, result.n_group, result.topk_group
        )
        return result


def check_routing(name: str, num_experts: int, top_k: int, num_groups: int, topk_group: int) -> None:
    """ConfigError unless `top_k` of `num_experts` can be chosen from `topk_group` of `num_groups` groups."""
    if num_experts % num_groups or topk_group > num_groups or num_experts < 2 * num_groups:
        raise ConfigError(
            f"config of {name}: {num_experts} experts cannot be routed within {topk_group} of {num_groups} groups "
            "of two experts or more"
        )
    if top_k > topk_group * (num_experts // num_groups):
        raise ConfigError(
            f"config of {name}: num_experts_per_tok {top_k} is above the experts in {topk_group} of {num_groups} "
            f"groups of {num_experts // num_groups}"
        )
