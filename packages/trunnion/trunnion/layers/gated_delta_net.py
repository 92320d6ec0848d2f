"""A gated delta net layer (the linear attention of Qwen3-Next and Qwen3.5): projections around a recurrent group."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.config import BuildContext
from trunnion.interfaces.attention import RecurrentGroup, RecurrentSpec
from trunnion.interfaces.weights import Placement, set_placements
from trunnion.layers.group_layer import GroupLayer
from trunnion.layers.linear import ColumnParallelLinear, LinearBase, MergedColumnParallelLinear, RowParallelLinear


class GatedDeltaNet(GroupLayer[RecurrentGroup]):
    """`layer(hidden) -> hidden`, [T, hidden_size] both, over a state per request (arXiv:2412.06464).

    Parameters carry Qwen3-Next's names: `in_proj_qkvz`, `in_proj_ba`, `conv1d`, `A_log`, `dt_bias`, `norm`, `out_proj`.

    Args:
        num_k_heads, num_v_heads: of all ranks; each k-head serves `num_v_heads / num_k_heads` v-heads.
        rms_norm_eps: of the gated norm on each head's output.
        separate_projections: `in_proj_qkvz` and `in_proj_ba` have the parts q, k, v, z and b, a, one after the other
            (Qwen3.5, whose checkpoints have several projections); else each is one in the checkpoint and ordered by
            k-head, (q, k, v.., z..) and (b.., a..) of one after those of another (Qwen3-Next).
    """

    def __init__(
        self,
        hidden_size: int,
        num_k_heads: int,
        num_v_heads: int,
        head_k_dim: int,
        head_v_dim: int,
        conv_kernel_size: int,
        rms_norm_eps: float,
        *,
        separate_projections: bool = False,
        ctx: BuildContext,
        prefix: str,
    ) -> None:
        if num_v_heads % num_k_heads:
            raise ValueError(f"{prefix}: {num_v_heads} v-heads cannot share {num_k_heads} k-heads evenly")
        parallel = ctx.parallel
        spec = RecurrentSpec(
            num_k_heads=parallel.divide(num_k_heads, f"{prefix} num_k_heads"),
            num_v_heads=parallel.divide(num_v_heads, f"{prefix} num_v_heads"),
            head_k_dim=head_k_dim,
            head_v_dim=head_v_dim,
            conv_kernel_size=conv_kernel_size,
            dtype=ctx.dtype,
        )
        super().__init__(spec, prefix)
        self.spec: RecurrentSpec = spec
        self.separate_projections = separate_projections
        key_dim, value_dim = num_k_heads * head_k_dim, num_v_heads * head_v_dim
        qkvz = {"q": key_dim, "k": key_dim, "v": value_dim, "z": value_dim}
        self.in_proj_qkvz = self._projection(hidden_size, qkvz, ctx, f"{prefix}.in_proj_qkvz")
        ba = {"b": num_v_heads, "a": num_v_heads}
        self.in_proj_ba = self._projection(hidden_size, ba, ctx, f"{prefix}.in_proj_ba")
        self.conv1d = _Weight((spec.conv_dim, 1, conv_kernel_size), ctx.dtype)
        set_placements(self.conv1d.weight, {"": _conv_placement(spec, parallel.rank, parallel.size)})
        # Kept in float32 whatever the model's dtype: the decay is an exponential of an exponential.
        self.A_log = _head_parameter(spec.num_v_heads, parallel.rank, num_v_heads)
        self.dt_bias = _head_parameter(spec.num_v_heads, parallel.rank, num_v_heads)
        self.norm = RMSNormGated(head_v_dim, rms_norm_eps, ctx=ctx)
        self.out_proj = RowParallelLinear(value_dim, hidden_size, ctx=ctx, prefix=f"{prefix}.out_proj")

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[T, hidden_size] -> [T, hidden_size]"""
        mixed_qkv, z = self._split_qkvz(self.in_proj_qkvz(hidden))
        b, a = self._split_ba(self.in_proj_ba(hidden))
        g = -self.A_log.exp() * F.softplus(a.float() + self.dt_bias)  # [T, Hv]
        out = self.run_group(mixed_qkv, g, b.sigmoid(), self.conv1d.weight.squeeze(1), None)
        return self.out_proj(self.norm(out, z).flatten(1))

    def _projection(self, hidden_size: int, parts: Mapping[str, int], ctx: BuildContext, prefix: str) -> LinearBase:
        """One layer for all `parts`, given with their features of all ranks."""
        if not self.separate_projections:
            return ColumnParallelLinear(hidden_size, sum(parts.values()), ctx=ctx, prefix=prefix)
        sizes, names = list(parts.values()), list(parts)
        return MergedColumnParallelLinear(hidden_size, sizes, part_names=names, ctx=ctx, prefix=prefix)

    def _split_qkvz(self, qkvz: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """-> mixed_qkv [T, conv_dim] with all q, then all k, then all v; z [T, Hv, Dv]."""
        spec = self.spec
        if self.separate_projections:
            return qkvz[:, : spec.conv_dim], qkvz[:, spec.conv_dim :].unflatten(-1, (spec.num_v_heads, -1))
        values = spec.num_v_heads // spec.num_k_heads * spec.head_v_dim
        by_head = qkvz.unflatten(-1, (spec.num_k_heads, -1))
        q, k, v, z = by_head.split((spec.head_k_dim, spec.head_k_dim, values, values), dim=-1)
        mixed_qkv = torch.cat((q.flatten(1), k.flatten(1), v.flatten(1)), dim=-1)
        return mixed_qkv, z.flatten(1).unflatten(-1, (spec.num_v_heads, -1))

    def _split_ba(self, ba: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """-> b and a, [T, Hv] each."""
        if self.separate_projections:
            b, a = ba.chunk(2, dim=-1)
            return b, a
        b, a = ba.unflatten(-1, (self.spec.num_k_heads, 2, -1)).unbind(2)
        return b.flatten(1), a.flatten(1)


class RMSNormGated(nn.Module):
    """`norm(x, gate)` = `rms_norm(x) * weight * silu(gate)`; x, gate [..., size], the weight on every rank."""

    def __init__(self, size: int, eps: float, *, ctx: BuildContext) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size, dtype=ctx.dtype), requires_grad=False)

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return torch.ops.trunnion.rms_norm_gated(x, gate, self.weight, self.eps)


class _Weight(nn.Module):
    """Gives a parameter the name `<module>.weight`."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape, dtype=dtype), requires_grad=False)


def _head_parameter(local: int, rank: int, total: int) -> nn.Parameter:
    parameter = nn.Parameter(torch.empty(local, dtype=torch.float32), requires_grad=False)
    own = slice(rank * local, (rank + 1) * local)
    set_placements(parameter, {"": Placement(shape=(total,), source=(own,))})
    return parameter


def _conv_placement(spec: RecurrentSpec, rank: int, size: int) -> Placement:
    """Channels are all q, then all k, then all v; a rank's heads lie in three places."""
    local_key, local_value = spec.num_k_heads * spec.head_k_dim, spec.num_v_heads * spec.head_v_dim
    shape = (spec.conv_dim * size, 1, spec.conv_kernel_size)
    if size == 1:
        return Placement(shape=shape)
    rows: list[int] = []
    offset = 0
    for local in (local_key, local_key, local_value):
        rows += range(offset + rank * local, offset + (rank + 1) * local)
        offset += local * size
    return Placement(shape=shape, source=(rows,))
