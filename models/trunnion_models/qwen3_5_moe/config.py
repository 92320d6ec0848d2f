"""Qwen3.5-MoE configuration in the field names of the published `config.json`: of the text alone, or beside a tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trunnion_models.fields import integer, require
from trunnion_models.qwen3_5.config import Qwen3_5TextConfig
from trunnion_models.qwen3_next.config import check_experts


@dataclass(frozen=True, kw_only=True)
class Qwen3_5MoeConfig(Qwen3_5TextConfig):
    """With experts in every layer, whose weights always add up to one."""

    moe_intermediate_size: int = 512
    shared_expert_intermediate_size: int = 512
    num_experts: int = 256
    num_experts_per_tok: int = 8

    norm_topk_prob: ClassVar[bool] = True
    text_type: ClassVar[str] = "qwen3_5_moe_text"
    default_kv_heads: ClassVar[int] = 2

    @classmethod
    def check_mlp(cls, text: Mapping[str, Any]) -> None:
        """See `Qwen3_5TextConfig.check_mlp`."""
        # Qwen3-Next has these; transformers does not read them here.
        require(text, "norm_topk_prob", True, [True])
        require(text, "mlp_only_layers", [], [[]])
        require(text, "decoder_sparse_step", 1, [1])
        num_experts = integer(text, "num_experts", cls.num_experts)
        check_experts(text, num_experts, integer(text, "num_experts_per_tok", cls.num_experts_per_tok))

    def is_sparse(self, index: int) -> bool:
        """See `GatedDeltaConfig.is_sparse`."""
        return True
