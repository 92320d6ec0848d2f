"""Where the tensors of a Granite-MoE checkpoint go."""

from __future__ import annotations

from trunnion.weights.name_map import ExpertRule, WeightMap

WEIGHT_MAP = WeightMap(
    rename=(
        (r"block_sparse_moe\.router\.layer", "block_sparse_moe.router"),
        (r"block_sparse_moe\.(input|output)_linear\.weight", r"block_sparse_moe.experts.\1_linear"),
    ),
    experts=(
        ExpertRule(
            block="block_sparse_moe.experts",
            stacked_gate_up="input_linear",
            stacked_down="output_linear",
            stacked_transposed=False,
        ),
    ),
    fuse={"qkv_proj": {"q": "q_proj", "k": "k_proj", "v": "v_proj"}},
)
