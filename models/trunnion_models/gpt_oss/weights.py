"""Where the tensors of a gpt-oss checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import ExpertRule, WeightMap

WEIGHT_MAP = WeightMap(
    rename=((r"self_attn\.sinks", "self_attn.attn.sinks"),),
    experts=(ExpertRule(block="mlp.experts", stacked_transposed=True, stacked_interleaved=True),),
    fuse={"qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"}},
)
"""Stacks lie transposed: hidden and intermediate size are equal in published models, so that no shape would tell."""
