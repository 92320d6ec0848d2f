"""Pooling: from hidden states to embeddings, as the checkpoint's pooling says."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from trunnion.config import BuildContext, PoolingConfig
from trunnion.errors import UnsupportedError


class LastTokenPooling(nn.Module):
    """The rows asked for are the last tokens of their prompts: what is left is to scale them to length 1, if asked.

    Raises:
        UnsupportedError: the checkpoint pools other rows, which a decoder has not seen when its prompt ends.
    """

    def __init__(self, *, ctx: BuildContext) -> None:
        super().__init__()
        self.normalize = _pooling_of(ctx, ("lasttoken",), "a decoder").normalize

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, hidden_size] float32; of length 1 if normalised, a row of zeros stays one."""
        return _finish(hidden, self.normalize)


class SequencePooling(nn.Module):
    """Pooling of an encoder, whose prompts come whole: the row of the first token (`cls`), or the mean of all rows.

    Called at the end of `forward`, so that the last row of every request holds the request's vector; `finish` is called
    on the rows asked for.

    Raises:
        UnsupportedError: the checkpoint pools in another way.
    """

    def __init__(self, *, ctx: BuildContext) -> None:
        super().__init__()
        pooling = _pooling_of(ctx, ("cls", "mean"), "an encoder")
        self.mode, self.normalize = pooling.mode, pooling.normalize

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """hidden [T, hidden_size], positions [T] -> [T, hidden_size], of which the requests' last rows count."""
        pool = rows_of_first_tokens if self.mode == "cls" else mean_so_far
        return pool(hidden, positions)

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, hidden_size] -> [N, hidden_size] float32; of length 1 if normalised, a row of zeros stays one."""
        return _finish(hidden, self.normalize)


def rows_of_first_tokens(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Each row becomes that of its request's first token; hidden [T, D], positions [T], which begin with 0."""
    return hidden.index_select(0, _first_rows(positions))


def mean_so_far(hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """A request's last row becomes the mean of all its rows, summed in float32; the others are of no use."""
    first = _first_rows(positions)
    sums = torch.zeros_like(hidden, dtype=torch.float32).index_add_(0, first, hidden.float())
    return (sums.index_select(0, first) / (positions + 1).unsqueeze(-1)).to(hidden.dtype)


def _first_rows(positions: torch.Tensor) -> torch.Tensor:
    """[T] int64: the row of the first token of each token's request. Prompts come whole, so that positions tell it."""
    return torch.arange(positions.shape[0], device=positions.device) - positions


def _pooling_of(ctx: BuildContext, modes: tuple[str, ...], what: str) -> PoolingConfig:
    assert ctx.pooling is not None, "a pooling model is built for a checkpoint that says how it pools"
    if ctx.pooling.mode not in modes:
        raise UnsupportedError(
            f"pooling mode {ctx.pooling.mode} of {what} is not supported; choices: {', '.join(modes)}"
        )
    return ctx.pooling


def _finish(hidden: torch.Tensor, normalize: bool) -> torch.Tensor:
    hidden = hidden.float()
    return F.normalize(hidden, dim=-1) if normalize else hidden
