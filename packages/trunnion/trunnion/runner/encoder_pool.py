"""The encoder pool: what images were encoded to, at a fixed address that captured steps read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunnion.contract import EncoderItem
from trunnion.errors import BatchRefused
from trunnion.interfaces.model import MultiModal


class EncoderPool:
    """Rows that stand for the tokens of images. The host says which are free; nothing here remembers an image.

    `rows` [max_encoder_rows, hidden_size] lies on the device and is never made anew. Encoding runs the model's Python
    on the executor's stream, before the step's forward: rows that a step in flight still reads are safe.
    """

    def __init__(
        self, model: MultiModal, num_rows: int, hidden_size: int, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._model = model
        self.rows = torch.zeros(num_rows, hidden_size, dtype=dtype, device=device)

    def check(self, items: Sequence[EncoderItem]) -> None:
        """Shapes, dtypes and places of a step's images.

        Raises:
            BatchRefused: patches or grid that the model cannot take, rows that are not the grid's, outside the pool, or
                given to two images.
        """
        taken: list[range] = []
        for index, item in enumerate(items):
            name = f"encoder_items[{index}]"
            self._check_pixels(name, item)
            self._check_rows(name, item)
            rows = range(item.first_row, item.first_row + item.num_rows)
            for other in taken:
                if rows.start < other.stop and other.start < rows.stop:
                    raise BatchRefused(
                        f"{name}: rows {rows.start} ... {rows.stop - 1} are another image's of this step"
                    )
            taken.append(rows)

    @torch.inference_mode()
    def encode(self, items: Sequence[EncoderItem]) -> None:
        """Encode checked items, one at a time, into their rows."""
        for item in items:
            rows = self._model.encode(item.pixels.to(self.rows.device), item.grid)
            self.rows[item.first_row : item.first_row + item.num_rows].copy_(rows)

    def _check_pixels(self, name: str, item: EncoderItem) -> None:
        pixels, columns = item.pixels, self._model.encoder_patch_dim
        if pixels.dtype != torch.float32:
            raise BatchRefused(f"{name}: pixels have dtype {pixels.dtype}, expected torch.float32")
        if pixels.device.type != "cpu" or not pixels.is_contiguous():
            raise BatchRefused(f"{name}: pixels must be contiguous and on the host, not on {pixels.device}")
        frames, height, width = item.grid
        wanted = (frames * height * width, columns)
        if tuple(pixels.shape) != wanted:
            raise BatchRefused(
                f"{name}: pixels have shape {tuple(pixels.shape)}, a grid of {tuple(item.grid)} patches needs {wanted}"
            )

    def _check_rows(self, name: str, item: EncoderItem) -> None:
        try:
            wanted = self._model.num_encoder_rows(item.grid)
        except ValueError as error:
            raise BatchRefused(f"{name}: {error}") from None
        if item.num_rows != wanted:
            raise BatchRefused(
                f"{name}: num_rows is {item.num_rows}, a grid of {tuple(item.grid)} patches makes {wanted}"
            )
        if item.first_row < 0 or item.first_row + wanted > len(self.rows):
            raise BatchRefused(
                f"{name}: rows {item.first_row} ... {item.first_row + wanted - 1} are outside the pool of "
                f"{len(self.rows)} (max_encoder_rows)"
            )
