"""Checks of what FlashInfer takes as it is, beside those of every group."""

from __future__ import annotations

import torch


def check_indices(**tensors: torch.Tensor | None) -> None:
    """ValueError: indices of another dtype than FlashInfer's kernels are compiled for."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype != torch.int32:
            raise ValueError(f"{name} is {tensor.dtype}, expected torch.int32")
