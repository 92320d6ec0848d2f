"""Norms of heads that are cut over ranks equal those of the whole row; ranks that share a KV head count it once."""

from __future__ import annotations

import pytest
import torch

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import NoCollectives, ParallelGroup
from trunnion.interfaces.weights import placements_of
from trunnion.reference import ReferenceHardware
from trunnion_models.olmo2.norm import ProjectionNorm, norm_q_and_k

HEAD_DIM, EPS = 6, 1e-5


class Told(NoCollectives):
    """A rank that is told what all ranks together have."""

    def __init__(self, total: torch.Tensor) -> None:
        self.total = total

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape == self.total.shape and x.dtype == torch.float32
        return self.total


def norm_of(num_heads: int, weight: torch.Tensor, parallel: ParallelGroup) -> ProjectionNorm:
    ctx = BuildContext(hardware=ReferenceHardware(), dtype=torch.float32, parallel=parallel)
    norm = ProjectionNorm(num_heads, HEAD_DIM, EPS, ctx=ctx)
    place = placements_of(norm.weight)[""]
    assert place.shape == tuple(weight.shape)
    norm.weight.data = weight[place.source].clone()
    return norm


def heads_of(rank: int, size: int, num_heads: int) -> slice:
    """Features of the heads that `rank` has; with more ranks than heads, neighbours share one."""
    local = max(1, num_heads // size)
    first = rank * num_heads // size
    return slice(first * HEAD_DIM, (first + local) * HEAD_DIM)


@pytest.mark.parametrize(("size", "num_heads", "num_kv_heads"), [(2, 4, 2), (4, 4, 2), (4, 8, 1), (2, 2, 2)])
def test_ranks_normalise_as_one(size: int, num_heads: int, num_kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(1)
    heads = (num_heads, num_kv_heads)
    rows = [torch.randn(5, count * HEAD_DIM, generator=generator) * 0.01 for count in heads]
    weights = [torch.randn(count * HEAD_DIM, generator=generator) for count in heads]
    want = [
        row / (row.square().mean(-1, keepdim=True) + EPS).sqrt() * weight
        for row, weight in zip(rows, weights, strict=True)
    ]
    total = torch.stack([row.square().sum(-1) for row in rows], dim=-1)
    sums = torch.zeros_like(total)
    for rank in range(size):
        parallel = ParallelGroup(rank=rank, size=size, collectives=Told(total))
        norms = [norm_of(count, weight, parallel) for count, weight in zip(heads, weights, strict=True)]
        cuts = [heads_of(rank, size, count) for count in heads]
        mine = [row[:, cut] for row, cut in zip(rows, cuts, strict=True)]
        got = norm_q_and_k(*norms, *mine)
        for found, row, cut in zip(got, want, cuts, strict=True):
            torch.testing.assert_close(found, row[:, cut])
        sums += torch.cat([norm.squares(row) for norm, row in zip(norms, mine, strict=True)], dim=-1)
    torch.testing.assert_close(sums, total)
