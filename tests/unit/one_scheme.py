"""What a layer is built with where a checkpoint has one quantisation scheme for all."""

from __future__ import annotations

import torch

from trunnion.config import BuildContext
from trunnion.interfaces.collectives import ParallelGroup
from trunnion.interfaces.quantization import GGUFBlocks, Scheme
from trunnion.reference import ReferenceHardware


class OfOneScheme:
    """See `trunnion.interfaces.quantization.Quantization`."""

    def __init__(self, scheme: Scheme | None) -> None:
        self._scheme = scheme

    def scheme(self, prefix: str) -> Scheme | None:
        return self._scheme

    def embedding_scheme(self, prefix: str) -> GGUFBlocks | None:
        return self._scheme if isinstance(self._scheme, GGUFBlocks) else None


def context(scheme: Scheme | None, rank: int = 0, size: int = 1, *, dtype: torch.dtype = torch.float32) -> BuildContext:
    """Of `rank` among `size`, on the references."""
    return BuildContext(
        hardware=ReferenceHardware(),
        dtype=dtype,
        parallel=ParallelGroup(rank=rank, size=size),
        quantization=OfOneScheme(scheme),
    )
