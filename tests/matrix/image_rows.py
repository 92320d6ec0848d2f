"""The host double's share in images: who holds which rows of the encoder pool, and what of it a step is told."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trunnion.contract import EncoderItem
from trunnion.runner.model_executor import ModelExecutor

if TYPE_CHECKING:
    from .host_double import Chunk, Request


class ImageRows:
    """Rows in runs at random places. An image is encoded once, and its rows stay until its last token is cached.

    Free rows hold NaN. Text takes nothing from the pool, so that it may.
    """

    def __init__(self, executor: ModelExecutor, rng: random.Random) -> None:
        pool = executor._encoder_pool
        self._rows = torch.empty(0, 0) if pool is None else pool.rows
        self._rng = rng
        self.encodes = 0
        self._new: list[EncoderItem] = []
        self.reset()

    def reset(self) -> None:
        """Free everything."""
        self._free = set(range(len(self._rows)))
        self._rows.fill_(torch.nan)

    def reserve(self, batch: Sequence[Chunk]) -> None:
        """Take rows for the images that the batch comes to."""
        self._new = []
        for chunk in batch:
            request = chunk.request
            for index, image in enumerate(request.images):
                begins = image.first_token < request.computed + chunk.count
                if begins and request.computed < image.end and index not in request.rows:
                    rows = request.rows[index] = self._take(image.num_tokens)
                    self._new.append(EncoderItem(image.pixels, image.grid, rows.start, len(rows)))
        self.encodes += len(self._new)

    def items(self, batch: Sequence[Chunk]) -> Sequence[EncoderItem]:
        """What this step must encode, once `reserve` has been called for it."""
        new, self._new = self._new, []
        assert not new or any(chunk.request.images for chunk in batch), "only requests with images are encoded for"
        return new

    @staticmethod
    def indices(batch: Sequence[Chunk]) -> list[int]:
        """The row of each token of the batch, -1 for text."""
        found = []
        for chunk in batch:
            request = chunk.request
            for token in range(request.computed, request.computed + chunk.count):
                rows = (
                    request.rows[index][token - image.first_token]
                    for index, image in enumerate(request.images)
                    if image.first_token <= token < image.end
                )
                found.append(next(rows, -1))
        return found

    def drop_behind(self, request: Request) -> None:
        """Free the rows of images all of whose tokens are cached."""
        for index in list(request.rows):
            if request.images[index].end <= request.computed:
                self._drop(request.rows.pop(index))

    def drop_all(self, request: Request) -> None:
        """Free what a request holds."""
        for index in list(request.rows):
            self._drop(request.rows.pop(index))

    def _take(self, count: int) -> range:
        starts = [first for first in self._free if all(first + step in self._free for step in range(count))]
        assert starts, f"no {count} rows in a row are free of {len(self._rows)}"
        first = self._rng.choice(sorted(starts))
        self._free.difference_update(range(first, first + count))
        return range(first, first + count)

    def _drop(self, rows: range) -> None:
        self._free.update(rows)
        self._rows[rows.start : rows.stop].fill_(torch.nan)
