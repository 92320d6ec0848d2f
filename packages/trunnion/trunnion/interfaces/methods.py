"""How a linear layer or a block of experts keeps and applies its weights: the seam for quantisation and layouts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from trunnion.interfaces.weights import Placement


@dataclass(frozen=True, kw_only=True)
class LinearShape:
    """The part of a linear layer that lies on this rank. Weights are `[out_features, in_features]`."""

    in_features: int
    out_features: int
    dtype: torch.dtype
    placements: Mapping[str, Placement]
    """Where the parts of an unquantised `weight` come from; a method derives its own tensors' places from them."""
    prefix: str = ""
    """The layer's name, for messages."""


class LinearMethod(ABC):
    """create, load (by placements), finalize, apply. Stateless: all state lies on the layer.

    `finalize` may lay the weight out anew (packed, swizzled, transposed); called again after a reload it must be
    idempotent and keep every data pointer.
    """

    @abstractmethod
    def create(self, layer: torch.nn.Module, shape: LinearShape) -> None:
        """Register the layer's parameters, with placements."""

    def finalize(self, layer: torch.nn.Module) -> None:
        """Called once all parameters are loaded."""
        return None

    @abstractmethod
    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`[..., in_features] -> [..., out_features]`."""

    def rows(self, layer: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, by number, in the model's dtype: `[T] -> [T, in_features]`; of a layer that embeds."""
        raise NotImplementedError(f"{type(self).__name__} looks up no rows")

    def dense_weight(self, layer: torch.nn.Module) -> torch.Tensor:
        """`[out_features, in_features]` in the model's dtype, for who multiplies with it otherwise than `apply` does.

        Only of a layer whose `keeps_dense_weight` was set before it was loaded.
        """
        raise NotImplementedError(f"{type(self).__name__} keeps no dense weight")


@dataclass(frozen=True, kw_only=True)
class ClampedSwiGLU:
    """Joins gate and up as `(up + 1) * gate * sigmoid(alpha * gate)`, in place of `silu(gate) * up` (gpt-oss)."""

    alpha: float
    limit: float
    """Of the gate from above, and of up from both sides; applied first."""


@dataclass(frozen=True, kw_only=True)
class MoEShape:
    """Experts on this rank: `w13` is `[E, 2 * I, H]` (gate rows, then up rows), `w2` is `[E, H, I]`."""

    num_experts: int
    hidden_size: int
    intermediate_size: int
    dtype: torch.dtype
    w13_placements: Mapping[str, Placement]
    w2_placements: Mapping[str, Placement]
    has_bias: bool = False
    """The layer has `w13_bias` [E, 2 * I] and `w2_bias` [E, H], in `dtype`, registered already."""
    swiglu: ClampedSwiGLU | None = None
    """None: `silu(gate) * up`."""
    prefix: str = ""
    """The block's name, for messages."""


class MoEMethod(ABC):
    """As `LinearMethod`, for a block of experts."""

    @abstractmethod
    def create(self, layer: torch.nn.Module, shape: MoEShape) -> None:
        """Register `w13` and `w2` (or their quantised form) with placements.

        Raises:
            UnsupportedError: `apply` would leave out the biases or the activation of `shape`.
        """

    def finalize(self, layer: torch.nn.Module) -> None:
        """Called once all parameters are loaded."""
        return None

    @abstractmethod
    def apply(
        self, layer: torch.nn.Module, x: torch.Tensor, topk_weights: torch.Tensor, topk_ids: torch.Tensor
    ) -> torch.Tensor:
        """`x` [T, H], `topk_weights` [T, k] float32, `topk_ids` [T, k] int64 -> [T, H]; T = 0 is valid.

        The biases to add are `layer.biases()`: that of `w2` is added by one rank.
        """
