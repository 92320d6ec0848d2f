"""Puts this repository's layers in the place of modules that are shown to compute the same: norms, gated MLPs, linears.

A module is a candidate by its parts, and is replaced if both give the same for random input, to within a rounding. What
cannot be shown stays as transformers has it. Theirs and ours share their weights, so that each can take the other's
place without a copy, unless a hardware package lays a weight out anew.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.layers.activation import SiluAndMul
from trunnion.layers.linear import LinearBase, MergedColumnParallelLinear, ReplicatedLinear
from trunnion.layers.norm import RMSNorm

EPS_NAMES = ("variance_epsilon", "eps", "epsilon")
SIZES = (1e-3, 1.0, 30.0)
"""Of the rows that both are given: an epsilon shows in small ones."""
ROUNDINGS = {torch.float32: 64}
OF_OTHERS = 2
"""Of the largest result, that a result of ours may be off: in float32 the order of sums shows, elsewhere hardly."""


@dataclass(frozen=True)
class Swap:
    """One place in a model, and the two modules that fit it."""

    parent: nn.Module
    name: str
    theirs: nn.Module
    ours: nn.Module

    def put(self, module: nn.Module) -> None:
        """Have `module` stand there."""
        self.parent._modules[self.name] = module


class Swaps:
    """The swaps of one model whose weights are loaded, on their device; none is in place yet."""

    def __init__(self, model: nn.Module, ctx: BuildContext) -> None:
        self._swaps = tuple(_find(model, ctx))
        self._counts = Counter(type(swap.ours).__name__ for swap in self._swaps)

    def install(self) -> None:
        """Have our layers run."""
        for swap in self._swaps:
            swap.put(swap.ours)

    def remove(self) -> None:
        """Have transformers' modules run."""
        for swap in self._swaps:
            swap.put(swap.theirs)

    def settle(self) -> None:
        """Let go of what does not stand in the model."""
        self._swaps = ()

    def drop(self) -> None:
        """Do without."""
        self.remove()
        self.settle()
        self._counts.clear()

    def notes(self) -> list[str]:
        """A line for the load's report."""
        said = ", ".join(f"{count} {name}" for name, count in sorted(self._counts.items()))
        return [f"adapter: this repository's layers in the place of transformers': {said}"] if said else []


class GatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))` with gate and up as one product; the weights are those of another module."""

    def __init__(self, theirs: Any, down_proj: nn.Module, ctx: BuildContext, name: str) -> None:
        super().__init__()
        gate, up = theirs.gate_proj, theirs.up_proj
        alone = replace(ctx, parallel=ParallelGroup())
        with torch.device("meta"):
            self.gate_up_proj = MergedColumnParallelLinear(
                gate.in_features, (gate.out_features, up.out_features), ctx=alone, prefix=f"{name}.gate_up_proj"
            )
        weight = torch.cat((gate.weight.detach(), up.weight.detach()))
        gate.weight.data, up.weight.data = weight[: gate.out_features], weight[gate.out_features :]
        self.gate_up_proj.weight = nn.Parameter(weight, requires_grad=False)
        self.gate_up_proj.finalize()
        self.act_fn = SiluAndMul()
        self.down_proj = down_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden_size] -> [..., hidden_size]."""
        out: torch.Tensor = self.down_proj(self.act_fn(self.gate_up_proj(x)))
        return out


def _find(model: nn.Module, ctx: BuildContext) -> Iterator[Swap]:
    """MLPs before the linears within, which then are in neither's way."""
    done: set[int] = set()
    for make in (_gated_mlp, _norm, _linear):
        for path, parent in list(model.named_modules()):
            if id(parent) in done:
                continue
            for name, theirs in list(parent.named_children()):
                ours = make(theirs, ctx, f"{path}.{name}" if path else name)
                if ours is not None:
                    done.update(id(each) for each in theirs.modules())
                    yield Swap(parent, name, theirs, ours)


def _norm(theirs: Any, ctx: BuildContext, _: str) -> nn.Module | None:
    weight = getattr(theirs, "weight", None)
    eps = next((getattr(theirs, name) for name in EPS_NAMES if isinstance(getattr(theirs, name, None), float)), None)
    if not _has_only(theirs, {"weight"}) or eps is None or weight.dim() != 1 or weight.dtype != ctx.dtype:
        return None
    for unit_offset in (False, True):
        with torch.device("meta"):
            ours = RMSNorm(weight.shape[0], eps, unit_offset=unit_offset, ctx=ctx)
        ours.weight = theirs.weight
        if _agree(theirs, ours, weight.shape[0], weight):
            return ours
    return None


def _gated_mlp(theirs: Any, ctx: BuildContext, name: str) -> nn.Module | None:
    linears = {child: each for child, each in theirs.named_children() if _is_linear(each)}
    weights = {f"{child}.weight" for child in ("gate_proj", "up_proj", "down_proj")}
    activations = (nn.SiLU, *_silu_of_transformers())
    if (
        not linears.keys() >= {"gate_proj", "up_proj", "down_proj"}
        or not any(isinstance(each, activations) for each in theirs.children())
        or not _has_only(theirs, weights, {"down_proj.bias"})
        or any(linears[child].weight.dtype != ctx.dtype for child in ("gate_proj", "up_proj"))
    ):
        return None
    down_proj = _linear(theirs.down_proj, ctx, f"{name}.down_proj") or theirs.down_proj
    ours = GatedMLP(theirs, down_proj, ctx, name)
    return ours if _agree(theirs, ours, theirs.gate_proj.in_features, theirs.gate_proj.weight) else None


def _linear(theirs: Any, ctx: BuildContext, name: str) -> nn.Module | None:
    if type(theirs) is not nn.Linear or theirs.weight.dtype != ctx.dtype:
        return None
    bias = theirs.bias is not None
    with torch.device("meta"):
        ours = ReplicatedLinear(theirs.in_features, theirs.out_features, bias=bias, ctx=ctx, prefix=name)
    ours.weight, ours.bias = theirs.weight, theirs.bias
    ours.finalize()
    return ours if _agree(theirs, ours, theirs.in_features, theirs.weight) else None


def _silu_of_transformers() -> tuple[type[nn.Module], ...]:
    from transformers.activations import SiLUActivation

    return (SiLUActivation,)


def _is_linear(module: nn.Module) -> bool:
    return type(module) is nn.Linear or isinstance(module, LinearBase)


def _has_only(module: nn.Module, needed: set[str], allowed: frozenset[str] | set[str] = frozenset()) -> bool:
    """Whether these are its parameters, it has no buffers, and its forward takes one argument."""
    names = {name for name, _ in module.named_parameters()}
    arguments = inspect.signature(module.forward).parameters
    return needed <= names <= needed | allowed and not list(module.buffers()) and len(arguments) == 1


@torch.inference_mode()
def _agree(theirs: Callable[..., Any], ours: Callable[..., Any], size: int, like: torch.Tensor) -> bool:
    """Whether both give the same for rows of `size` features, in dtype and place of `like`."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(2 * len(SIZES), size, generator=generator) * torch.tensor(SIZES).repeat(2)[:, None]
    rows = rows.to(like.device, like.dtype)
    try:
        wanted = theirs(rows)
    except Exception:
        # Theirs, and made for rows of another form: it stays.
        return False
    found = ours(rows)
    if not isinstance(wanted, torch.Tensor) or wanted.shape != found.shape or wanted.dtype != found.dtype:
        return False
    allowed = ROUNDINGS.get(like.dtype, OF_OTHERS) * torch.finfo(like.dtype).eps
    largest = wanted.float().abs().amax(-1, keepdim=True)
    error = (found.float() - wanted.float()).abs()
    return bool((error <= allowed * largest).all())
