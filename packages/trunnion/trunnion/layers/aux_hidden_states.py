"""What a decoder lets a draft see of its inside: hidden states after some of its layers, written where the draft reads.

They are what EAGLE-3 (arXiv:2503.01840) calls low, middle and high features: the residual stream between two layers,
before any norm. Number i is the stream after i layers: 0 means the embeddings, the number of layers what the final norm
takes. transformers' `hidden_states[i]` are the same, but for the last, which it returns normalised.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class AuxHiddenStates(nn.Module):
    """Called by a decoder before its first layer and after each one; writes what an executor has asked for.

    It has no parameters, and does nothing until it is bound.
    """

    def __init__(self, num_layers: int, hidden_size: int) -> None:
        super().__init__()
        self.num_layers = num_layers
        self.hidden_size = hidden_size
        self._columns: dict[int, list[torch.Tensor]] = {}

    def check(self, layers: Sequence[int]) -> None:
        """ValueError if the decoder has not so many layers as one of the numbers."""
        for number in layers:
            if not 0 <= number <= self.num_layers:
                raise ValueError(f"no auxiliary hidden states after layer {number}; choices: 0 ... {self.num_layers}")

    def bind(self, layers: Sequence[int], rows: torch.Tensor) -> None:
        """From now on write the states after so many `layers` side by side into `rows`.

        Args:
            rows: [max_num_tokens, len(layers) * hidden_size]; a step of T tokens writes the first T rows.

        Raises:
            ValueError: as `check`.
        """
        self.check(layers)
        columns = rows.split(self.hidden_size, dim=-1)
        self._columns = {
            number: [column for column, wanted in zip(columns, layers, strict=True) if wanted == number]
            for number in layers
        }

    def forward(self, number: int, hidden_states: torch.Tensor, residual: torch.Tensor | None) -> None:
        """After `number` layers: their output [T, hidden_size] and the residual, which is still to be added to it."""
        for column in self._columns.get(number, ()):
            out = column[: hidden_states.shape[0]]
            if residual is None:
                out.copy_(hidden_states)
            else:
                torch.add(hidden_states, residual, out=out)

    def extra_repr(self) -> str:
        return f"{sorted(self._columns)} of {self.num_layers}"
