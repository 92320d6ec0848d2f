"""Hidden states at fixed device addresses: what an executor keeps of its last step, and what a draft takes of it."""

from __future__ import annotations

import torch


class HiddenStates:
    """Rows `[num_rows, hidden_size]` of one step; views of their beginnings are kept, for there are few sizes.

    Everything is enqueued in the order of the calls, as the executor's steps are.
    """

    def __init__(self, num_rows: int, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(num_rows, hidden_size, dtype=dtype, device=device)
        self._views: dict[int, torch.Tensor] = {}

    @property
    def nbytes(self) -> int:
        return self.rows.numel() * self.rows.element_size()

    def first(self, count: int) -> torch.Tensor:
        """Rows `[0, count)`."""
        found = self._views.get(count)
        if found is None:
            found = self._views[count] = self.rows[:count]
        return found

    def keep(self, hidden: torch.Tensor) -> None:
        """Copy a step's hidden states `[T, hidden_size]` to the first T rows."""
        self.first(hidden.shape[0]).copy_(hidden)

    def take(self, source: HiddenStates, indices: torch.Tensor) -> None:
        """Copy rows `indices` [T] of `source` to the first T rows."""
        torch.index_select(source.rows, 0, indices, out=self.first(indices.shape[0]))
