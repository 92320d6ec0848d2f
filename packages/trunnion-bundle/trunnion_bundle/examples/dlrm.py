"""A ranker: a tiny DLRM with a DCNv2 cross network; `python -m trunnion_bundle.examples.dlrm DIR`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import trunnion_bundle
from trunnion_bundle import Batching, Endpoint, IndexRange, Input, Tolerance

NUM_DENSE = 13
ROWS = tuple(200 + 37 * table for table in range(26))
"""Rows of each embedding table."""
ALLOWED = (1, 8, 32, 128, 256)


class CrossNetwork(nn.Module):
    """Low-rank DCNv2: `x_next = x_0 * (W (V x) + b) + x` (Wang et al. 2021, equation 2)."""

    def __init__(self, width: int, rank: int, num_layers: int) -> None:
        super().__init__()
        self.v = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(num_layers))
        self.w = nn.ModuleList(nn.Linear(rank, width) for _ in range(num_layers))

    def forward(self, x0: Tensor) -> Tensor:
        x = x0
        for v, w in zip(self.v, self.w, strict=True):
            x = x0 * w(v(x)) + x
        return x


def mlp(width: int, sizes: Sequence[int], *, last_relu: bool) -> nn.Sequential:
    """Linear layers with ReLU between."""
    layers: list[nn.Module] = []
    for i, size in enumerate(sizes):
        layers.append(nn.Linear(width, size))
        width = size
        if last_relu or i < len(sizes) - 1:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class Dlrm(nn.Module):
    """Scores of rows with 13 dense features and one index into each table."""

    def __init__(self, rows: Sequence[int] = ROWS, dim: int = 16, rank: int = 32, num_layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sum(rows), dim)
        self.register_buffer("offsets", torch.cumsum(torch.tensor([0, *rows[:-1]]), 0))
        self.bottom = mlp(NUM_DENSE, (64, dim), last_relu=True)
        width = dim * (len(rows) + 1)
        self.cross = CrossNetwork(width, rank, num_layers)
        self.top = mlp(width, (128, 64, 1), last_relu=False)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        """`dense` FP32 [batch, 13], `sparse` INT64 [batch, tables] -> scores FP32 [batch]."""
        embedded = self.embedding(sparse + self.offsets)  # [batch, tables, dim]
        features = torch.cat([self.bottom(dense).unsqueeze(1), embedded], 1).flatten(1)
        return torch.sigmoid(self.top(self.cross(features))).squeeze(1)


def build(seed: int = 0) -> Dlrm:
    """The model with random weights."""
    torch.manual_seed(seed)
    return Dlrm().eval()


def example(rows: int, seed: int = 1) -> dict[str, Tensor]:
    """A request."""
    random = torch.Generator().manual_seed(seed)
    sparse = torch.stack([torch.randint(0, below, (rows,), generator=random) for below in ROWS], 1)
    return {"dense": torch.randn(rows, NUM_DENSE, generator=random), "sparse": sparse}


def recipe(batching: Batching | None = None) -> dict[str, Any]:
    """Arguments of `trunnion_bundle.save`."""
    values = example(8)
    endpoint = Endpoint(
        function=build(),
        inputs={
            "dense": Input(example=values["dense"]),
            "sparse": Input(example=values["sparse"], index_range=IndexRange(below=ROWS)),
        },
        outputs=("scores",),
        batching=batching or Batching(allowed_sizes=ALLOWED),
        tolerance=Tolerance(absolute=1e-5, relative=1e-4),
        description="Probability of a click.",
    )
    return {"endpoints": {"score": endpoint}, "name": "dlrm"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder to write")
    trunnion_bundle.save(parser.parse_args().folder, **recipe())


if __name__ == "__main__":
    main()
