"""DeepSeek-V2 configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import family, read_fields, require


@dataclass(frozen=True, kw_only=True)
class DeepseekV2Config:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    rope: RopeParameters
    max_position_embeddings: int
    q_lora_rank: int | None = None
    """Rank of the query's projection; None = one full projection (V2-Lite)."""
    n_shared_experts: int = 0
    first_k_dense_replace: int = 0
    """Layers before this one have a dense MLP."""
    routed_scaling_factor: float = 1.0
    topk_method: str = "greedy"
    n_group: int = 1
    topk_group: int = 1
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> DeepseekV2Config:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        require(config, "topk_method", "greedy", ["greedy", "group_limited_greedy"])
        require(config, "scoring_func", "softmax", ["softmax"])
        # The published code normalises only when this is set, transformers never does; no V2 checkpoint sets it.
        require(config, "norm_topk_prob", False, [False])
        require(config, "moe_layer_freq", 1, [1])
        require(config, "mlp_bias", False, [False])
        config = {"max_position_embeddings": 2048, **config}
        result = cls(**read_fields(cls, config, rope=read_rope(config)))
        result._check(family(config))
        return result

    def _check(self, name: str) -> None:
        if self.num_experts_per_tok > self.n_routed_experts:
            raise ConfigError(
                f"config of {name}: num_experts_per_tok {self.num_experts_per_tok} is above "
                f"n_routed_experts {self.n_routed_experts}"
            )
        if self.topk_method != "group_limited_greedy":
            return
        if self.n_routed_experts % self.n_group or self.topk_group > self.n_group:
            raise ConfigError(
                f"config of {name}: {self.n_routed_experts} experts cannot be routed within {self.topk_group} of "
                f"{self.n_group} groups"
            )
