"""Keeps what goes into and comes out of each module of one forward, under names that both implementations share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

LAYER = re.compile(r"^.*?(layers|h|blocks)\.(?=\d+(\.|$))")


@dataclass(frozen=True)
class Call:
    """One module's first call, as float32 on the host, [T, features]."""

    given: torch.Tensor | None
    """The first rows of features among its arguments; None where there are none (token ids)."""
    made: torch.Tensor


def shared_name(name: str) -> str:
    """Without what stands before the layers, or the module's own name: prefixes differ between implementations."""
    inside = LAYER.sub("layers.", name)
    return inside if inside != name or name.startswith("layers.") else name.rpartition(".")[2]


@contextmanager
def recording(model: nn.Module) -> Iterator[dict[str, Call]]:
    """What each module's forward was given and returned while the context is open, in the order in which they ended."""
    calls: dict[str, Call] = {}
    handles = []
    for name, module in model.named_modules():
        if not name:
            continue

        def keep(module: nn.Module, args: Any, kwargs: Any, out: Any, name: str = shared_name(name)) -> None:
            made = _made(module, out)
            if made is not None and name not in calls:
                calls[name] = Call(_first_rows([*args, *kwargs.values()]), made)

        handles.append(module.register_forward_hook(keep, with_kwargs=True))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _made(module: nn.Module, out: Any) -> torch.Tensor | None:
    """A tuple of a layer that leaves its residual apart is their sum; of others the first counts."""
    if not isinstance(out, torch.Tensor):
        parts = list(out) if isinstance(out, tuple | list) else [getattr(out, "last_hidden_state", None)]
        rows = [part for part in parts if isinstance(part, torch.Tensor) and part.is_floating_point()]
        if not rows:
            return None
        whole = len(rows) == 2 and len(parts) == 2 and rows[0].shape == rows[1].shape and any(module.children())
        out = rows[0].float() + rows[1].float() if whole else rows[0]
    return _rows(out) if out.is_floating_point() else None


def _first_rows(arguments: list[Any]) -> torch.Tensor | None:
    found = (each for each in arguments if isinstance(each, torch.Tensor) and each.is_floating_point())
    return next((_rows(each) for each in found if each.dim() > 1), None)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """[T, features] of [T, ...] or [1, T, ...]."""
    tensor = tensor[0] if tensor.dim() > 2 and tensor.shape[0] == 1 else tensor
    return tensor.detach().float().cpu().flatten(1) if tensor.dim() > 1 else tensor.detach().float().cpu()[:, None]
