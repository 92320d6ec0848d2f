"""Where the tensors of a Mixtral checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import ExpertRule, WeightMap

WEIGHT_MAP = WeightMap(
    # transformers 5 calls the block `mlp`, and stacks the experts.
    rename=((r"mlp", "block_sparse_moe"),),
    experts=(ExpertRule(block="block_sparse_moe.experts", gate="w1", up="w3", down="w2"),),
    fuse={"qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"}},
)
