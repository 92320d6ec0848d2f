"""The base of every layer that calls a group: it carries a spec and a prefix, and is bound once by the executor."""

from __future__ import annotations

from typing import Generic, TypeVar

from torch import nn

from trunnion.interfaces.attention import Group, GroupSpec

GroupT = TypeVar("GroupT", bound=Group)


class GroupLayer(nn.Module, Generic[GroupT]):
    """A layer whose work is done by a group. The executor finds such layers in module order and binds them."""

    def __init__(self, spec: GroupSpec, prefix: str) -> None:
        super().__init__()
        self.spec = spec
        self.prefix = prefix
        self._group: GroupT | None = None
        self.layer_index = -1

    def bind(self, group: GroupT, index: int) -> None:
        """Bind to layer `index` of `group`."""
        self._group = group
        self.layer_index = index

    @property
    def group(self) -> GroupT:
        """The bound group; RuntimeError, with the layer's prefix, before `bind`."""
        if self._group is None:
            raise RuntimeError(f"layer {self.prefix!r} is not bound to a group; ModelExecutor binds layers at create")
        return self._group
