"""RMS norms of q and k over all their heads: ranks have some of them each, and add up their sums of squares."""

from __future__ import annotations

import torch
from torch import nn

import trunnion.ops  # noqa: F401  (registers the operators)
from trunnion.config import BuildContext
from trunnion.interfaces.weights import Placement, set_placements


class ProjectionNorm(nn.Module):
    """The norm of a projection to `num_heads * head_dim` features, cut over ranks as QKVParallelLinear cuts heads."""

    def __init__(self, num_heads: int, head_dim: int, eps: float, *, ctx: BuildContext) -> None:
        super().__init__()
        self.parallel = ctx.parallel
        self.size, self.eps = num_heads * head_dim, eps
        # With more ranks than KV heads, neighbours have the same one.
        self.copies = max(1, ctx.parallel.size // num_heads)
        local = self.size * self.copies // ctx.parallel.size
        first = ctx.parallel.rank // self.copies * local
        self.weight = nn.Parameter(torch.empty(local, dtype=ctx.dtype), requires_grad=False)
        set_placements(self.weight, {"": Placement(shape=(self.size,), source=(slice(first, first + local),))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, size] -> the same, normalised; for one rank."""
        return torch.ops.trunnion.rms_norm(x, self.weight, self.eps, False)

    def squares(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, features on this rank] -> [T, 1] float32, whose sum over the ranks is that of all squares."""
        return x.float().square().sum(-1, keepdim=True) / self.copies

    def scale(self, x: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
        """x [T, features on this rank] and the sum of all squares [T, 1] -> x, normalised."""
        return (self.weight * (x.float() * torch.rsqrt(squares / self.size + self.eps))).to(x.dtype)


def norm_q_and_k(
    q_norm: ProjectionNorm, k_norm: ProjectionNorm, q: torch.Tensor, k: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """q and k [T, features on this rank], both normalised with at most one collective."""
    parallel = q_norm.parallel
    if parallel.size == 1:
        return q_norm(q), k_norm(k)
    squares = torch.cat((q_norm.squares(q), k_norm.squares(k)), dim=-1)
    of_q, of_k = parallel.collectives.all_reduce(squares).split(1, dim=-1)
    return q_norm.scale(q, of_q), k_norm.scale(k, of_k)
