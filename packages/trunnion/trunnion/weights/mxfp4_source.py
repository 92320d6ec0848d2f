"""A checkpoint of MXFP4 whose blocks and scales, which lie in tensors and often files of their own, come together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch

from trunnion.errors import WeightsError
from trunnion.weights.source import TensorInfo, WeightSource

BLOCKS, SCALES = "_blocks", "_scales"
BLOCK_BYTES = 16
"""Of a block's 32 values."""


class MXFP4Source:
    """The tensors of `source`; `X_blocks` [..., G, 16] with `X_scales` [..., G] is one tensor `X_blocks` [..., G, 17]
    uint8, of which each row of 17 is a scale and its block.

    Raises:
        WeightsError: blocks without scales, or scales without blocks, or shapes that do not fit.
    """

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._infos = dict(source.infos)
        self._scales: dict[str, str] = {}
        for name in [name for name in self._infos if name.endswith(BLOCKS)]:
            self._scales[name] = name.removesuffix(BLOCKS) + SCALES
            self._infos[name] = self._joined(name, self._scales[name])
        lost = [name for name in self._infos if name.endswith(SCALES)]
        if lost:
            raise WeightsError(f"{self.description}: {lost[0]} has no blocks: {_partner(lost[0])} is missing")

    @property
    def description(self) -> str:
        return self._source.description

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def tensors(self, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """Plain ones file by file, then blocks, each with its scales."""
        yield from self._source.tensors([name for name in names if name not in self._scales])
        for name, scales in self._scales.items():
            if name in names:
                read = dict(self._source.tensors((name, scales)))
                yield name, torch.cat((read[scales].unsqueeze(-1), read[name]), -1)

    def _joined(self, name: str, scales_name: str) -> TensorInfo:
        blocks, scales = self._infos[name], self._infos.pop(scales_name, None)
        if scales is None:
            raise WeightsError(f"{self.description}: {name} has no scales: {scales_name} is missing")
        if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.shape != (*scales.shape, BLOCK_BYTES):
            raise WeightsError(
                f"{self.description}: {name} {blocks.stored} {list(blocks.shape)} and {scales_name} {scales.stored} "
                f"{list(scales.shape)} are not {BLOCK_BYTES} bytes of U8 for each scale of U8"
            )
        return TensorInfo(
            shape=(*scales.shape, 1 + BLOCK_BYTES),
            stored="MXFP4",
            nbytes=blocks.nbytes + scales.nbytes,
            file=blocks.file,
            dtype=torch.uint8,
        )


def _partner(scales: str) -> str:
    return scales.removesuffix(SCALES) + BLOCKS
