"""Linear layers cut over the ranks of a tensor-parallel group; a method keeps and applies the weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from trunnion.config import BuildContext
from trunnion.interfaces.methods import LinearShape
from trunnion.interfaces.weights import Placement, set_placements


class LinearBase(nn.Module):
    """This rank's part of a linear layer. `placements` are those of the unquantised weight [out_features, in_features].

    Everything about the weight goes through the method that `ctx` names for `prefix`; the bias is the layer's own.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        placements: Mapping[str, Placement],
        *,
        bias: bool,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.prefix = prefix
        self.parallel = ctx.parallel
        self.method = ctx.linear_method(prefix)
        shape = LinearShape(
            in_features=in_features,
            out_features=out_features,
            dtype=ctx.dtype,
            placements=dict(placements),
            prefix=prefix,
        )
        self.keeps_dense_weight = False
        self.method.create(self, shape)
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.empty(out_features, dtype=ctx.dtype), requires_grad=False)
            set_placements(self.bias, {part: _bias_placement(place) for part, place in placements.items()})

    def finalize(self) -> None:
        """Let the method lay the weight out; called once all parameters are loaded, again after a reload."""
        self.method.finalize(self)

    def dense_weight(self) -> torch.Tensor:
        """[out_features, in_features] of this rank, in the model's dtype; set `keeps_dense_weight` when building."""
        return self.method.dense_weight(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features] -> [..., out_features] of this rank."""
        return self.method.apply(self, x, self.bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class ReplicatedLinear(LinearBase):
    """Every rank holds and computes the whole layer."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, ctx: BuildContext, prefix: str
    ) -> None:
        placements = {"": Placement(shape=(out_features, in_features))}
        super().__init__(in_features, out_features, placements, bias=bias, ctx=ctx, prefix=prefix)


class MergedColumnParallelLinear(LinearBase):
    """Column-parallel layers that read the same input, as one: `gate` and `up` of an MLP, for example.

    Output: this rank's share of each part, one after the other. Every part must divide over the ranks.
    """

    def __init__(
        self,
        in_features: int,
        out_features: Sequence[int],
        *,
        part_names: Sequence[str] = ("gate", "up"),
        bias: bool = False,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        if len(part_names) != len(out_features):
            raise ValueError(f"{prefix}: {len(out_features)} parts but the names {tuple(part_names)}")
        rank = ctx.parallel.rank
        self.part_sizes = tuple(ctx.parallel.divide(size, f"{prefix} out_features") for size in out_features)
        shards = {
            name: (full, rank * size, size)
            for name, full, size in zip(part_names, out_features, self.part_sizes, strict=True)
        }
        placements = _row_placements(in_features, shards)
        super().__init__(in_features, sum(self.part_sizes), placements, bias=bias, ctx=ctx, prefix=prefix)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """The output features are cut over the ranks; the output stays cut."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = False, ctx: BuildContext, prefix: str
    ) -> None:
        super().__init__(in_features, [out_features], part_names=("",), bias=bias, ctx=ctx, prefix=prefix)


class QKVParallelLinear(LinearBase):
    """Query, key and value projections as one, cut by heads; parts `q`, `k`, `v`.

    With more ranks than KV heads, each KV head is held by `tp_size / num_kv_heads` neighbouring ranks.

    Attributes:
        num_heads, num_kv_heads: heads on this rank.
        q_size, kv_size: features of q, and of k or v, on this rank; `[q, k, v]` is the output's order.

    Args:
        q_head_dim: features per query head where they are not `head_dim` (a gate beside each query).
    """

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        q_head_dim: int | None = None,
        bias: bool = False,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        rank, size = ctx.parallel.rank, ctx.parallel.size
        q_head_dim = head_dim if q_head_dim is None else q_head_dim
        self.num_heads = ctx.parallel.divide(num_heads, f"{prefix} num_heads")
        if num_kv_heads >= size:
            self.num_kv_heads = ctx.parallel.divide(num_kv_heads, f"{prefix} num_kv_heads")
            first_kv_head = rank * self.num_kv_heads
        elif size % num_kv_heads:
            raise ValueError(f"{prefix}: {size} ranks cannot share {num_kv_heads} KV heads evenly")
        else:
            self.num_kv_heads = 1
            first_kv_head = rank // (size // num_kv_heads)
        self.q_size = self.num_heads * q_head_dim
        self.kv_size = self.num_kv_heads * head_dim
        kv_shard = (num_kv_heads * head_dim, first_kv_head * head_dim, self.kv_size)
        shards = {"q": (num_heads * q_head_dim, rank * self.q_size, self.q_size), "k": kv_shard, "v": kv_shard}
        placements = _row_placements(hidden_size, shards)
        super().__init__(hidden_size, self.q_size + 2 * self.kv_size, placements, bias=bias, ctx=ctx, prefix=prefix)


class RowParallelLinear(LinearBase):
    """The input features are cut over the ranks; the ranks' products are summed, the bias once.

    With `reduce_results` False they are not: whoever adds this layer's output to another's sums both in one
    all-reduce.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        reduce_results: bool = True,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        local = ctx.parallel.divide(in_features, f"{prefix} in_features")
        first = ctx.parallel.rank * local
        source = (slice(None), slice(first, first + local))
        placements = {"": Placement(shape=(out_features, in_features), source=source)}
        super().__init__(local, out_features, placements, bias=bias, ctx=ctx, prefix=prefix)
        self.reduce_results = reduce_results

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in_features of this rank] -> [..., out_features], the same on every rank if results are reduced."""
        bias = self.bias if self.parallel.rank == 0 else None
        out = self.method.apply(self, x, bias)
        return self.parallel.collectives.all_reduce(out) if self.reduce_results else out


def _row_placements(in_features: int, shards: Mapping[str, tuple[int, int, int]]) -> dict[str, Placement]:
    """Parts stacked by rows; a shard is (rows in the checkpoint, first row of this rank, rows of this rank)."""
    placements = {}
    offset = 0
    for name, (full, first, count) in shards.items():
        placements[name] = Placement(
            shape=(full, in_features),
            source=(slice(first, first + count),),
            target=(slice(offset, offset + count),),
        )
        offset += count
    return placements


def _bias_placement(weight: Placement) -> Placement:
    """A bias follows the rows of its weight."""
    return Placement(shape=weight.shape[:1], source=weight.source[:1], target=weight.target[:1])
