"""Qwen3-MoE configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import attention_heads, family, num_layers, read_fields, require, window_by_layer


@dataclass(frozen=True, kw_only=True)
class Qwen3MoeConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rope: RopeParameters
    windows: tuple[int | None, ...]
    """Per layer: tokens a query sees, itself included; None = all."""
    mlp_only_layers: tuple[int, ...]
    """Layers with a dense MLP where the others have experts."""
    max_position_embeddings: int
    moe_intermediate_size: int = 768
    num_experts: int = 128
    num_experts_per_tok: int = 8
    decoder_sparse_step: int = 1
    norm_topk_prob: bool = False
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen3MoeConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        config = {"max_position_embeddings": 32768, "num_key_value_heads": 4, **config}
        if "num_local_experts" in config:
            # How transformers 5 writes it.
            config = {"num_experts": config["num_local_experts"], **config}
        kind = "sliding_attention" if config.get("use_sliding_window") else "full_attention"
        result = cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config),
                windows=window_by_layer(config, [kind] * num_layers(config), config.get("sliding_window", 4096)),
                mlp_only_layers=tuple(config.get("mlp_only_layers") or ()),
                **attention_heads(config),
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
