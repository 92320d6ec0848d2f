"""Qwen2.5-VL (arXiv:2502.13923): a Qwen2 decoder over text and what its vision tower makes of images."""

from __future__ import annotations

import torch

from trunnion.config import BuildContext
from trunnion_models.qwen2.model import Qwen2ForCausalLM
from trunnion_models.qwen2_5_vl.config import Qwen2_5_VLConfig
from trunnion_models.qwen2_5_vl.vision import Grid, Qwen2_5_VLVisionTower
from trunnion_models.qwen2_5_vl.weights import WEIGHT_MAP


class Qwen2_5_VLForConditionalGeneration(Qwen2ForCausalLM):
    """The decoder is Qwen2's: the configuration's rope turns by three positions."""

    config_class = Qwen2_5_VLConfig
    weight_map = WEIGHT_MAP
    num_position_axes = 3

    def __init__(self, config: Qwen2_5_VLConfig, ctx: BuildContext, prefix: str = "") -> None:
        super().__init__(config, ctx, prefix)
        vision = config.vision
        self.visual = Qwen2_5_VLVisionTower(vision, ctx, f"{prefix}.visual" if prefix else "visual")
        self.merge_size = vision.spatial_merge_size
        self.patches_per_row = self.merge_size**2
        self.encoder_patch_dim = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2

    def num_encoder_rows(self, grid: Grid) -> int:
        """See `MultiModal.num_encoder_rows`."""
        frames, height, width = grid
        if min(grid) < 1 or height % self.merge_size or width % self.merge_size:
            raise ValueError(f"grid {tuple(grid)}: height and width must be multiples of {self.merge_size}, above 0")
        return frames * height * width // self.patches_per_row

    def encode(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """See `MultiModal.encode`."""
        return self.visual(pixels, grid)

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """See `MultiModal.embed`."""
        return self.model.embed_tokens(input_ids)
