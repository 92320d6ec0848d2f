"""The ways in which a decoder of transformers runs here: flat, split, or one request at a time as a whole.

Flat is one row of tokens of all requests, attention on our groups. Split is flat but for the modules that cannot be:
they run once per request. Where neither will do, the decoder is such a module itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trunnion.adapter.attention import HANDLER, ModuleCalls, eager_configs, make_layer
from trunnion.adapter.latent import Handed, LatentAttention
from trunnion.adapter.trial import Findings, Seen
from trunnion.adapter.units import LayerRows, LayerState, StepCaches, Unit, make_layers
from trunnion.config import BuildContext
from trunnion.errors import UnsupportedError
from trunnion.layers.attention import Attention


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a trial has found to work, and how a request that has begun goes on."""

    findings: Findings
    is_whole: bool = False
    """The decoder runs once per request."""
    one_by_one: bool = False
    """Modules that run per request get the tokens of a request that has begun one at a time."""
    batched: bool = False
    """Modules that keep nothing but states get requests that have begun, and get one token, in one call."""
    expands: bool = False
    """Latent attention caches its keys and values expanded."""
    why_not_before: str | None = None
    """What kept the way before this one from being taken."""
    number_of_states: int
    num_qo_heads: int

    @property
    def name(self) -> str:
        """flat, split or whole."""
        if self.is_whole:
            return "whole"
        return "split" if self.findings.units else "flat"

    @property
    def num_latent(self) -> int:
        """Layers that cache latents."""
        return 0 if self.expands else sum(seen.latent is not None for seen in self.findings.calls)

    @property
    def why_eager(self) -> str | None:
        """Why no step can be captured, if so."""
        asks = self.findings.asks
        return None if asks is None else f"every step eager: the module asks the device for values ({asks})"

    @property
    def keeps_states(self) -> bool:
        """Whether a module keeps more than rows of tokens."""
        return any(plan.state_bytes for plan in self.findings.units.values())

    @property
    def can_batch(self) -> bool:
        """Whether a module could be given several requests in one call."""
        return any(plan.can_batch for plan in self.findings.units.values())

    def describe(self) -> str:
        """One line for the load's report."""
        units = self.findings.units
        latents = f", {self.num_latent} layers cache latents" if self.num_latent else ""
        if self.expands:
            latents = f"; latent attention caches keys and values expanded ({self.why_not_before})"
        eager = f", {self.why_eager}" if self.why_eager else ""
        if not units:
            return f"adapter: flat, all requests of a step in one row of tokens{latents}{eager}"
        state_bytes = sum(plan.state_bytes for plan in units.values())
        row_bytes = sum(plan.row_bytes for plan in units.values())
        others = {seen.module for seen in self.findings.calls}
        what = "the decoder runs" if self.is_whole else f"{len(units)} of {len(units) + len(others)} mixers run"
        turns = ", token by token where a request goes on" if self.one_by_one else ""
        if self.batched:
            count = sum(plan.can_batch for plan in units.values())
            turns += f", {count} of them with all decoding requests in one call"
        return (
            f"adapter: {self.name}, {what} once per request{turns}, outside of graphs, "
            f"with {state_bytes:,} bytes of state per request and {row_bytes:,} per token{latents}{eager} "
            f"({self.why_not_before or self.findings.why_split})"
        )


class InstalledWay:
    """A way, in place in a module of transformers: the calls that it answers, and the layers that answer them.

    Raises:
        UnsupportedError: heads do not divide, or rows are to be kept in another dtype.
    """

    def __init__(self, way: Way, ctx: BuildContext, handed: Handed) -> None:
        self.way = way
        self._handed = handed
        findings = way.findings
        if ctx.kv_cache_dtype is not None and findings.units:
            raise UnsupportedError(f"modules that run once per request keep keys in their own dtype, not in "
                                   f"{ctx.kv_cache_dtype}")  # fmt: skip
        self.attention = [self._make_layer(seen, ctx) for seen in findings.calls]
        self._kept = {name: make_layers(plan, way.num_qo_heads) for name, plan in findings.units.items()}
        self._answers: list[ModuleCalls | Unit] = []
        self._changed: list[tuple[nn.Module, str, Any]] = []

    def layers(self) -> nn.ModuleList:
        """All that is bound to groups."""
        kept = (each for found in self._kept.values() for layers in found.values() for each in layers)
        return nn.ModuleList([*self.attention, *kept])

    def install(self, module: nn.Module) -> None:
        """Answer the module's calls, from here on until `remove`."""
        calls: dict[str, ModuleCalls] = {}
        for seen, layer in zip(self.way.findings.calls, self.attention, strict=True):
            calls.setdefault(seen.module, ModuleCalls(self._handed)).layers.append(layer)
        for name, found in calls.items():
            self._set(module.get_submodule(name), HANDLER, found)
        self._answers = [*calls.values()]
        if not self._kept:
            return
        by_layer: dict[int, list[LayerState | LayerRows]] = {}
        for found in self._kept.values():
            for index, layers in found.items():
                by_layer.setdefault(index, []).extend(layers)
        caches = StepCaches(by_layer, self.way.number_of_states)
        for name, found in self._kept.items():
            unit_module = module.get_submodule(name)
            for each, config in eager_configs(unit_module).items():
                self._set(each, "config", config)
            layers = [layer for found_layers in found.values() for layer in found_layers]
            plan = self.way.findings.units[name]
            unit = Unit(plan, unit_module, layers, caches, one_by_one=self.way.one_by_one, batched=self.way.batched)
            self._set(unit_module, "forward", unit)
            self._answers.append(unit)

    def remove(self) -> None:
        """Leave the module as it was."""
        for module, name, before in reversed(self._changed):
            if before is None:
                del module.__dict__[name]
            else:
                module.__dict__[name] = before
        self._changed.clear()

    def begin(self) -> None:
        """A forward begins."""
        for answer in self._answers:
            answer.next = 0

    def take_sinks(self, module: nn.Module) -> None:
        """Read the attention layers' sinks from the module's weights."""
        for seen, layer in zip(self.way.findings.calls, self.attention, strict=True):
            if isinstance(layer, Attention) and layer.sinks is not None:
                sinks = module.get_submodule(seen.module).sinks
                layer.sinks = nn.Parameter(sinks.detach().float(), requires_grad=False)

    def take_latent_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Of the linear layers that `latent_linears` names."""
        for layer in self.attention:
            if isinstance(layer, LatentAttention):
                layer.take_weight(weights[layer.expands])

    def latent_linears(self) -> list[str]:
        """The linear layers that expand latents, by name."""
        return [layer.expands for layer in self.attention if isinstance(layer, LatentAttention)]

    def _make_layer(self, seen: Seen, ctx: BuildContext) -> Attention | LatentAttention:
        if seen.latent is None or self.way.expands or ctx.kv_cache_dtype is not None:
            return make_layer(seen.facts, seen.module, ctx)
        return LatentAttention(seen.latent, seen.module, ctx)

    def _set(self, module: nn.Module, name: str, value: Any) -> None:
        self._changed.append((module, name, module.__dict__.get(name)))
        module.__dict__[name] = value
