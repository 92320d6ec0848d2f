"""Attention of an encoder: every token of a run sees the whole run, nothing is cached, no group plans it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class EncoderAttention(nn.Module):
    """Unmasked attention within runs of tokens: the windows of one image, or all of it.

    Runs of equal length that follow each other are one call of `scaled_dot_product_attention`. The lengths are plain
    numbers of the host, so that nothing waits for the device.
    """

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = head_dim

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """q, k, v [P, H, D], runs of `lengths` that add up to P -> [P, H * D]."""
        outputs, start = [], 0
        for length, run in itertools.groupby(lengths):
            count = len(list(run))
            end = start + count * length
            cut = [x[start:end].unflatten(0, (count, length)).transpose(1, 2) for x in (q, k, v)]  # [n, H, L, D]
            outputs.append(F.scaled_dot_product_attention(*cut).transpose(1, 2).reshape(end - start, -1))
            start = end
        return torch.cat(outputs)
