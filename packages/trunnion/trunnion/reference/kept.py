"""Tensors that layers compute from their parameters, kept at one address across reloads."""

from __future__ import annotations

import torch
from torch import nn


def keep(layer: nn.Module, name: str, value: torch.Tensor) -> None:
    """As a buffer, whose address stays when it is computed anew after a reload."""
    kept = getattr(layer, name, None)
    if kept is None:
        layer.register_buffer(name, value, persistent=False)
    else:
        kept.copy_(value)
