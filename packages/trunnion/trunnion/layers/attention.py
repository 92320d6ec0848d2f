"""Paged attention as a model sees it: q, k, v in, attended values out; the bound group does the rest."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.errors import WeightsError
from trunnion.interfaces.attention import AttentionGroup, AttentionSpec, Rotation
from trunnion.interfaces.break_points import BreakPoints
from trunnion.interfaces.weights import Placement, scalar_with_default, set_placements
from trunnion.layers.group_layer import GroupLayer
from trunnion.layers.rotary_embedding import rotate


class Attention(GroupLayer[AttentionGroup]):
    """Attention of `num_heads` query heads over `num_kv_heads` KV heads, both counted on this rank.

    Args:
        scale: factor of q k^T, usually `head_dim ** -0.5`.
        window: tokens a query sees, itself included; None for all.
        soft_cap: `soft_cap * tanh(scores / soft_cap)`.
        sinks: each head has a learned logit `sinks` [num_heads] float32 in the softmax's denominator.

    With an fp8 cache the layer has two scalars, `k_scale` and `v_scale`: the checkpoint's, or 1.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int,
        scale: float,
        *,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: bool = False,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        if num_heads % num_kv_heads:
            raise ValueError(f"{prefix}: {num_heads} query heads cannot share {num_kv_heads} KV heads evenly")
        if window is not None and window < 1:
            raise ValueError(f"{prefix}: window must be at least 1, got {window}")
        spec = AttentionSpec(
            num_qo_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=scale,
            dtype=ctx.dtype,
            window=window,
            soft_cap=soft_cap,
            has_sinks=sinks,
            cache_dtype=ctx.kv_cache_dtype,
        )
        super().__init__(spec, prefix)
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.sinks: nn.Parameter | None = None
        if sinks:
            self.sinks = nn.Parameter(torch.empty(num_heads, dtype=torch.float32), requires_grad=False)
            first = ctx.parallel.rank * num_heads
            place = Placement(shape=(num_heads * ctx.parallel.size,), source=(slice(first, first + num_heads),))
            set_placements(self.sinks, {"": place})
        self._kv_scales = (1.0, 1.0)
        if ctx.kv_cache_dtype is not None:
            self.k_scale, self.v_scale = scalar_with_default(1.0), scalar_with_default(1.0)

    def finalize(self) -> None:
        """Read the scales, which groups take as plain numbers.

        Raises:
            WeightsError: a scale is not a positive number.
        """
        if self.spec.cache_dtype is None:
            return
        self._kv_scales = (float(self.k_scale), float(self.v_scale))
        for name, scale in zip(("k_scale", "v_scale"), self._kv_scales, strict=True):
            if not 0 < scale < math.inf:
                raise WeightsError(f"{self.prefix}.{name} is {scale}, expected a positive number")

    def bind(
        self,
        group: AttentionGroup,
        index: int,
        breaks: BreakPoints | None = None,
        run: Callable[..., torch.Tensor] | None = None,
    ) -> None:
        """See `GroupLayer.bind`; an fp8 cache is told its scales."""
        super().bind(group, index, breaks, run)
        if self.spec.cache_dtype is not None:
            group.set_kv_scales(index, *self._kv_scales)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """q [T, H * D] or [T, H, D], k and v likewise with the KV heads -> [T, H * D].

        With a `rotation` (`RotaryEmbedding.at`) q and k are rotated first, by the group where it can.
        """
        num_tokens = q.shape[0]
        q = q.reshape(num_tokens, self.num_heads, self.head_dim)
        k = k.reshape(num_tokens, self.num_kv_heads, self.head_dim)
        v = v.reshape(num_tokens, self.num_kv_heads, self.head_dim)
        if rotation is not None and not self.group.rotates:
            (q, k), rotation = rotate(q, k, rotation), None
        more = () if rotation is None else (rotation,)
        out = self.run_group(q, k, v, self.sinks, *more)  # [T, H, D]
        return out.reshape(num_tokens, self.num_heads * self.head_dim)
