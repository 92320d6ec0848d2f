"""A cache of transformers that rounds keys and values to what a cache in float8 holds: the truth for such caches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, PreTrainedModel

LARGEST = torch.finfo(torch.float8_e4m3fn).max
K_SCALE, V_SCALE = 0.011, 0.006
"""Of the first layer; the second has twice as much. The largest values are cut off."""


class RoundedCache(DynamicCache):
    """For one forward of whole sequences, whose attention reads what this returns."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(config=model.config)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        k_scale, v_scale = _scales(layer_idx)
        keys, values = _rounded(key_states, k_scale), _rounded(value_states, v_scale)
        return super().update(keys, values, layer_idx, *args, **kwargs)


def save_scales(folder: Path, num_layers: int) -> None:
    """Add the scales to the checkpoint in `folder`."""
    tensors = load_file(folder / "model.safetensors")
    for layer in range(num_layers):
        for name, scale in zip(("k_scale", "v_scale"), _scales(layer), strict=True):
            tensors[f"model.layers.{layer}.self_attn.{name}"] = torch.tensor(scale)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _scales(layer: int) -> tuple[float, float]:
    return K_SCALE * (1 + layer), V_SCALE * (1 + layer)


def _rounded(states: torch.Tensor, scale: float) -> torch.Tensor:
    return ((states.float() / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).float() * scale).to(states.dtype)
