"""Qwen2-MoE configuration in the field names of the published `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trunnion.errors import ConfigError
from trunnion.rope import RopeParameters, read_rope
from trunnion_models.fields import (
    attention_heads,
    family,
    layer_types,
    num_layers,
    read_fields,
    require,
    window_by_layer,
)


@dataclass(frozen=True, kw_only=True)
class Qwen2MoeConfig:
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
    moe_intermediate_size: int = 1408
    shared_expert_intermediate_size: int = 5632
    num_experts: int = 60
    num_experts_per_tok: int = 4
    decoder_sparse_step: int = 1
    norm_topk_prob: bool = False
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False

    @property
    def max_model_len(self) -> int:
        """Longest request the positions reach, in tokens."""
        return self.rope.max_model_len

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Qwen2MoeConfig:
        """Read a `config.json`; ConfigError or UnsupportedError names the field."""
        require(config, "hidden_act", "silu", ["silu"])
        require(config, "qkv_bias", True, [True])
        config = {"max_position_embeddings": 32768, "num_key_value_heads": 16, **config}
        result = cls(
            **read_fields(
                cls,
                config,
                rope=read_rope(config),
                windows=lower_windows(config),
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


def lower_windows(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Windows on every second layer below `max_window_layers`, the first one included, or as `layer_types` says."""
    window = config.get("sliding_window", 4096) if config.get("use_sliding_window") else None
    last = config.get("max_window_layers", 28)
    default = [
        "sliding_attention" if window is not None and index < last and index % 2 == 0 else "full_attention"
        for index in range(num_layers(config))
    ]
    return window_by_layer(config, layer_types(config, default, ["full_attention", "sliding_attention"]), window)
