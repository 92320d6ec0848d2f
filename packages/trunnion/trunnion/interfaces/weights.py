"""Where a checkpoint tensor goes in a parameter of this rank: declared by layers, read by the loader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Index = tuple[slice | int | list[int], ...]
"""An index with one entry per dimension; trailing dimensions may be left out. A list names rows one by one (channels of
a convolution over q, k and v side by side, of which a rank has a piece of each)."""


@dataclass(frozen=True, kw_only=True)
class Recoding:
    """How a checkpoint tensor that is stored otherwise than it is loaded becomes the tensor that is cut and copied."""

    stored_shape: Callable[[tuple[int, ...]], tuple[int, ...]]
    """Of a tensor that becomes one of the shape given, all ranks together."""
    dtype: torch.dtype | None
    """As stored; None: any that a parameter may be loaded from."""
    decode: Callable[[torch.Tensor], torch.Tensor]
    """A stored tensor -> one of the placement's shape, with the same values; WeightsError if it holds what has none."""
    by_rows: bool = False
    """Whether each row is decoded for itself, so that rows may be cut first."""


@dataclass(frozen=True, kw_only=True)
class Placement:
    """One checkpoint tensor, or the part of it that this rank owns, and its place in a parameter.

    `target_param[target] = checkpoint_tensor[source]`. Elements that no placement covers (vocabulary padding) are zero.
    """

    shape: tuple[int, ...]
    """Shape the checkpoint tensor must have, all ranks together; with a `recoding` what that makes of it."""
    source: Index = ()
    target: Index = ()
    loose: bool = False
    """Dimensions of 1 more or less are the same shape, and a tensor of shape () fills all of the target: scales."""
    fills_rows: bool = True
    """Whether all of a row is this part's where a checkpoint fuses it with the next one, so that rows can be cut."""
    recoding: Recoding | None = None

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of the checkpoint tensor."""
        return self.shape if self.recoding is None else self.recoding.stored_shape(self.shape)

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether a checkpoint tensor may have `shape`."""
        if self.loose:
            return [size for size in shape if size != 1] == [size for size in self.shape if size != 1]
        return tuple(shape) == tuple(self.stored_shape)


def set_placements(parameter: torch.Tensor, placements: Mapping[str, Placement]) -> None:
    """Declare the parts a parameter is loaded from; `""` is the name of the only part of a plain parameter."""
    parameter.trunnion_placements = dict(placements)  # type: ignore[attr-defined]


def add_parameter(
    module: torch.nn.Module, name: str, size: tuple[int, ...], dtype: torch.dtype, placements: Mapping[str, Placement]
) -> None:
    """Register an empty parameter of `module`, and where its parts come from."""
    parameter = torch.nn.Parameter(torch.empty(size, dtype=dtype), requires_grad=False)
    module.register_parameter(name, parameter)
    set_placements(parameter, placements)


def placements_of(parameter: torch.Tensor) -> Mapping[str, Placement]:
    """The declared parts, or one that takes the whole tensor."""
    declared: Mapping[str, Placement] | None = getattr(parameter, "trunnion_placements", None)
    return declared if declared is not None else {"": Placement(shape=tuple(parameter.shape))}


def scalar_with_default(value: float) -> torch.nn.Parameter:
    """A float32 scalar that a checkpoint may leave out; then it is `value`. It may be stored as `[]` or `[1]`."""
    parameter = torch.nn.Parameter(torch.empty((), dtype=torch.float32), requires_grad=False)
    set_placements(parameter, {"": Placement(shape=(), loose=True)})
    parameter.trunnion_default = value  # type: ignore[attr-defined]
    return parameter


def default_of(parameter: torch.Tensor) -> float | None:
    """What `scalar_with_default` was told; None for a parameter that the checkpoint must hold."""
    default: float | None = getattr(parameter, "trunnion_default", None)
    return default


@dataclass(frozen=True, kw_only=True)
class Known:
    """A checkpoint tensor that is compared and not loaded: the model knows what it must hold. It may be absent."""

    expected: str
    """For messages."""
    holds: Callable[[torch.Tensor], bool]
    """Whether a stored tensor, on the CPU, holds that."""


def set_known(module: torch.nn.Module, known: Mapping[tuple[str, str], Known]) -> None:
    """Declare what a layer's checkpoint tensors must hold that are no parameter here, by (name, part)."""
    module.trunnion_known = {**known_of(module), **known}  # type: ignore[assignment]


def known_of(module: torch.nn.Module) -> Mapping[tuple[str, str], Known]:
    """What `set_known` was told."""
    declared: Mapping[tuple[str, str], Known] = module.__dict__.get("trunnion_known", {})
    return declared
