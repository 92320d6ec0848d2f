"""The base of every layer that calls a group: it carries a spec and a prefix, and is bound once by the executor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from trunnion.interfaces.attention import Group, GroupSpec
from trunnion.interfaces.break_points import BreakKind, BreakPoints

GroupT = TypeVar("GroupT", bound=Group)


class GroupLayer(nn.Module, Generic[GroupT]):
    """A layer whose work is done by a group. The executor finds such layers in module order and binds them."""

    def __init__(self, spec: GroupSpec, prefix: str) -> None:
        super().__init__()
        self.spec = spec
        self.prefix = prefix
        self._group: GroupT | None = None
        self._breaks = BreakPoints()
        self._run: Callable[..., torch.Tensor] | None = None
        self.layer_index = -1

    def bind(
        self,
        group: GroupT,
        index: int,
        breaks: BreakPoints | None = None,
        run: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        """Bind to layer `index` of `group`; its calls are break points of `breaks`, at which `run` is called.

        `run` is `group.run` or something around it.
        """
        self._group = group
        self._run = group.run if run is None else run  # type: ignore[attr-defined]
        self.layer_index = index
        if breaks is not None:
            self._breaks = breaks

    def run_group(self, *args: Any) -> torch.Tensor:
        """`group.run(layer_index, *args)`, at a break point."""
        if self._run is None:
            raise self._not_bound()
        return self._breaks.call(BreakKind.GROUP, self._run, self.layer_index, *args)

    def within(self, *args: Any) -> torch.Tensor:
        """As `run_group`, inside the call of another layer, which is the break point of both."""
        if self._run is None:
            raise self._not_bound()
        return self._run(self.layer_index, *args)

    @property
    def group(self) -> GroupT:
        """The bound group; RuntimeError, with the layer's prefix, before `bind`."""
        if self._group is None:
            raise self._not_bound()
        return self._group

    def _not_bound(self) -> RuntimeError:
        return RuntimeError(f"layer {self.prefix!r} is not bound to a group; ModelExecutor binds layers at create")
