"""Keeps what goes into and comes out of each module of one forward, under names that both implementations share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from tqdm import tqdm  # type: ignore[import-untyped]

BEFORE_LAYERS = re.compile(r"^.*?(layers|h|blocks)\.(?=\d+(\.|$))")
LAYER = re.compile(r"layers\.\d+")


@dataclass(frozen=True)
class Call:
    """One module's first call, as float32 on the host, [T, features]."""

    given: torch.Tensor | None
    """The first rows of features among its arguments, and on them a residual that it is given too; None where there are
    none (token ids)."""
    made: torch.Tensor


def shared_name(name: str) -> str:
    """Without what stands before the layers, or the module's own name: prefixes differ between implementations."""
    inside = BEFORE_LAYERS.sub("layers.", name)
    return inside if inside != name or name.startswith("layers.") else name.rpartition(".")[2]


@contextmanager
def recording(model: nn.Module, title: str) -> Iterator[dict[str, Call]]:
    """What each module's forward was given and returned while the context is open, in the order in which they ended.

    On a terminal a bar called `title` counts the layers.
    """
    calls: dict[str, Call] = {}
    places: dict[str, int] = {}
    modules = [(shared_name(name), module) for name, module in model.named_modules() if name]
    num_layers = len({name for name, _ in modules if LAYER.fullmatch(name)})
    bar = tqdm(total=num_layers, desc=title, unit="layer", leave=False, disable=None)

    def hook(name: str, place: int) -> Any:
        def keep(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            made = _made(module, out)
            # Of several modules of one name that are called, the first in the model counts, at its first call.
            if made is None or places.get(name, place + 1) <= place:
                return
            bar.update(name not in calls and LAYER.fullmatch(name) is not None)
            calls.pop(name, None)
            calls[name], places[name] = Call(_given([*args, *kwargs.values()]), made), place

        return keep

    handles = [
        module.register_forward_hook(hook(name, place), with_kwargs=True)
        for place, (name, module) in enumerate(modules)
    ]
    try:
        yield calls
    finally:
        bar.close()
        for handle in handles:
            handle.remove()


def joined(parts: Sequence[Mapping[str, Call]]) -> dict[str, Call]:
    """Recordings of one model's forwards as of one, rows after rows; modules that some of them lack are left out."""
    return {
        name: Call(_cat([part[name].given for part in parts]), made)
        for name in parts[0]
        if all(name in part for part in parts) and (made := _cat([part[name].made for part in parts])) is not None
    }


def _cat(rows: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """None where a part has no rows, or they are of another width."""
    found = [each for each in rows if each is not None]
    alike = len(found) == len(rows) and len({each.shape[1:] for each in found}) == 1
    return torch.cat(found) if alike else None


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


def _given(arguments: list[Any]) -> torch.Tensor | None:
    """The first rows of features; with a second one of that shape, a residual, their sum."""
    found = [
        each for each in arguments if isinstance(each, torch.Tensor) and each.is_floating_point() and each.dim() > 1
    ]
    if not found:
        return None
    has_residual = len(found) == 2 and found[0].shape == found[1].shape
    return _rows(found[0].float() + found[1].float() if has_residual else found[0])


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """[T, features] of [T, ...] or [1, T, ...], copied: what follows may write over it."""
    tensor = tensor[0] if tensor.dim() > 2 and tensor.shape[0] == 1 else tensor
    rows = tensor.detach().to("cpu", torch.float32, copy=True)
    return rows.flatten(1) if rows.dim() > 1 else rows[:, None]
