"""Qwen2.5-VL's vision tower (arXiv:2502.13923): patches of one image to rows in the text's hidden size."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.layers.activation import Gelu
from trunnion.layers.encoder_attention import EncoderAttention
from trunnion.layers.linear import ReplicatedLinear
from trunnion.layers.norm import RMSNorm
from trunnion_models.gated_mlp import GatedMLP
from trunnion_models.qwen2_5_vl.config import Qwen2_5_VLVisionConfig

NORM_EPS = 1e-6
Grid = tuple[int, int, int]


class PatchEmbed(nn.Module):
    """A convolution whose stride is its kernel, which is a product with the flat patch: [P, patch_dim] -> [P, H]."""

    def __init__(self, config: Qwen2_5_VLVisionConfig, ctx: BuildContext) -> None:
        super().__init__()
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        weight = torch.empty(config.hidden_size, config.in_channels, *kernel, dtype=ctx.dtype)
        self.proj = nn.Module()
        self.proj.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return F.linear(pixels.to(self.proj.weight.dtype), self.proj.weight.flatten(1))


class VisionAttention(nn.Module):
    def __init__(self, config: Qwen2_5_VLVisionConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        size = config.hidden_size
        self.qkv = ReplicatedLinear(size, 3 * size, bias=True, ctx=ctx, prefix=f"{prefix}.qkv")
        self.proj = ReplicatedLinear(size, size, bias=True, ctx=ctx, prefix=f"{prefix}.proj")
        self.attn = EncoderAttention(config.num_heads, size // config.num_heads)

    def forward(
        self, x: torch.Tensor, order: torch.Tensor, cos_sin: torch.Tensor, lengths: tuple[int, ...]
    ) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.attn.num_heads, self.attn.head_dim)).unbind(1)  # [P, H, D]
        q, k = torch.ops.trunnion.rotary_embedding(q, k, order, cos_sin, False)
        return self.proj(self.attn(q, k, v, lengths))


class VisionBlock(nn.Module):
    def __init__(self, config: Qwen2_5_VLVisionConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.hidden_size, NORM_EPS, ctx=ctx)
        self.norm2 = RMSNorm(config.hidden_size, NORM_EPS, ctx=ctx)
        self.attn = VisionAttention(config, ctx, f"{prefix}.attn")
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=True, ctx=ctx, prefix=f"{prefix}.mlp")

    def forward(
        self, x: torch.Tensor, order: torch.Tensor, cos_sin: torch.Tensor, lengths: tuple[int, ...]
    ) -> torch.Tensor:
        x = x + self.attn(self.norm1(x), order, cos_sin, lengths)
        return x + self.mlp(self.norm2(x))


class PatchMerger(nn.Module):
    """Squares of patches to one row each: [P, H] -> [P / merge ** 2, out_hidden_size]."""

    def __init__(self, config: Qwen2_5_VLVisionConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        self.width = config.hidden_size * config.spatial_merge_size**2
        self.ln_q = RMSNorm(config.hidden_size, NORM_EPS, ctx=ctx)
        self.mlp = nn.Sequential(
            ReplicatedLinear(self.width, self.width, bias=True, ctx=ctx, prefix=f"{prefix}.mlp.0"),
            Gelu(),
            ReplicatedLinear(self.width, config.out_hidden_size, bias=True, ctx=ctx, prefix=f"{prefix}.mlp.2"),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mlp(self.ln_q(x).view(-1, self.width))


class Qwen2_5_VLVisionTower(nn.Module):
    """Replicated: every rank holds and computes all of it, since neither heads nor widths divide over many ranks."""

    def __init__(self, config: Qwen2_5_VLVisionConfig, ctx: BuildContext, prefix: str) -> None:
        super().__init__()
        ctx = dataclasses.replace(ctx, parallel=ParallelGroup())
        self.config = config
        self.patch_embed = PatchEmbed(config, ctx)
        self.blocks = nn.ModuleList(
            VisionBlock(config, ctx, f"{prefix}.blocks.{index}") for index in range(config.depth)
        )
        self.merger = PatchMerger(config, ctx, f"{prefix}.merger")

    def forward(self, pixels: torch.Tensor, grid: Grid) -> torch.Tensor:
        """pixels [t * h * w, patch_dim] in squares of the merge size -> [t * h * w / merge ** 2, out_hidden_size]."""
        config = self.config
        squares, windows = window_order(config, grid)
        squares = squares.to(pixels.device)
        unit = config.spatial_merge_size**2
        x = self.patch_embed(pixels).unflatten(0, (-1, unit))[squares].flatten(0, 1)
        cos_sin = axial_rope(config, grid).unflatten(0, (-1, unit))[squares.cpu()].flatten(0, 1).to(pixels.device)
        order = torch.arange(len(x), device=pixels.device)
        frames = (grid[1] * grid[2],) * grid[0]
        for index, block in enumerate(self.blocks):
            x = block(x, order, cos_sin, frames if index in config.fullatt_block_indexes else windows)
        merged = self.merger(x)
        return torch.empty_like(merged).index_copy_(0, squares, merged)


def window_order(config: Qwen2_5_VLVisionConfig, grid: Grid) -> tuple[torch.Tensor, tuple[int, ...]]:
    """Squares of an image in the order of its windows [t * h * w / merge ** 2], and the patches of each window.

    Windows go row by row; those at the right and lower edge may be smaller.
    """
    merge = config.spatial_merge_size
    side = config.window_size // merge // config.patch_size
    frames, rows, columns = grid[0], grid[1] // merge, grid[2] // merge
    squares = torch.arange(frames * rows * columns).view(frames, rows, columns)
    windows = [
        window.flatten() for frame in squares for band in frame.split(side) for window in band.split(side, dim=1)
    ]
    return torch.cat(windows), tuple(len(window) * merge**2 for window in windows)


def axial_rope(config: Qwen2_5_VLVisionConfig, grid: Grid) -> torch.Tensor:
    """[t * h * w, head_dim] float32 on the CPU: a patch's cosines, then its sines; a quarter of the head's pairs turns
    by its row, a quarter by its column. Patches come in squares."""
    merge, frames, height, width = config.spatial_merge_size, *grid
    pairs = config.hidden_size // config.num_heads // 4
    frequencies = 1.0 / config.rope_theta ** (torch.arange(pairs, dtype=torch.float32) / pairs)
    places = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij"), dim=-1)
    places = places.view(height // merge, merge, width // merge, merge, 2).transpose(1, 2).reshape(-1, 2)
    angles = (places.unsqueeze(-1) * frequencies).flatten(1).repeat(frames, 1)  # [P, 2 * pairs]
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
