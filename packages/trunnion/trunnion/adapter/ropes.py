"""Ropes whose frequencies transformers chooses by the longest position of a step, which is another request's: held at
those of the longest request that is admitted, as ports have them (`trunnion.rope`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig

from trunnion.errors import UnsupportedError

LENGTH_DEPENDENT = ("dynamic", "longrope")
HELD = "default"
"""Not looked at again: what a rope's type is for once its frequencies are chosen."""


def hold(model: nn.Module, longest: int, dtype: torch.dtype) -> list[str]:
    """Have every such rope choose for a request of `longest` tokens, and keep to it; a line for the load's report.

    On the meta device nothing is chosen, and ropes keep from looking all the same.

    Raises:
        UnsupportedError: a rope that cannot be asked.
    """
    held: set[str] = set()
    for module in model.modules():
        types = getattr(module, "rope_type", None)
        for layer_type, rope_type in types.items() if isinstance(types, dict) else [(None, types)]:
            if isinstance(rope_type, str) and any(each in rope_type for each in LENGTH_DEPENDENT):
                _choose(module, layer_type, longest, dtype)
                held.add(rope_type)
        if isinstance(types, dict):
            module.rope_type = {name: HELD if each in held else each for name, each in types.items()}
        elif types in held:
            module.rope_type = HELD
    return [f"adapter: rope {', '.join(sorted(held))} as for a request of {longest} tokens"] if held else []


def reach(config: PretrainedConfig) -> int | None:
    """Longest request the ropes of a text's configuration reach, if it is longer than the length that it names."""
    length = getattr(config, "max_position_embeddings", None)
    factors = [each.get("factor") for each in _entries(config) if each.get("rope_type") in ("dynamic", "linear")]
    if not factors or not isinstance(length, int) or not all(isinstance(factor, int | float) for factor in factors):
        return None
    return int(length * min(factors))


def _entries(config: PretrainedConfig) -> Iterator[dict[str, Any]]:
    ropes = getattr(config, "rope_parameters", None) or {}
    yield from (entry for entry in (ropes, *ropes.values()) if isinstance(entry, dict))


def _choose(module: Any, layer_type: str | None, longest: int, dtype: torch.dtype) -> None:
    """Transformers' own choice, for a step of the last token of the longest request."""
    device = next(iter(module.buffers())).device
    if device.type == "meta":
        return
    x = torch.empty(1, 1, 1, device=device, dtype=dtype)
    last = torch.full((1, 1), longest - 1, device=device)
    try:
        module(x, last) if layer_type is None else module(x, last, layer_type)
    except Exception as error:
        # The module is not ours: its words are the reason.
        words = " ".join(str(error).split())[:200]
        raise UnsupportedError(f"{type(module).__name__} cannot choose its frequencies once: {words}") from error
