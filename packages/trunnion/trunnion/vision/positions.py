"""Positions of a prompt with images along time, height and width, as Qwen2-VL counts them (arXiv:2409.12191)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trunnion.vision.patches import Grid


def mrope_positions(
    num_tokens: int, spans: Sequence[tuple[int, Grid]], merge_size: int
) -> tuple[npt.NDArray[np.int32], int]:
    """-> positions [num_tokens, 3] int32, and the delta: token i after the prompt is at position i + delta, thrice.

    Text counts on alike on all axes. An image's tokens count time, rows and columns from where the text has come to,
    and the text goes on behind the longer of its sides: positions never run ahead of tokens.

    Args:
        spans: per image its first token and its grid in patches, in order; it has `t * h * w / merge_size ** 2` tokens.

    Raises:
        ValueError: spans overlap, are out of order, or go past the prompt.
    """
    positions = np.empty((num_tokens, 3), np.int32)
    token, position = 0, 0
    for first, (frames, height, width) in spans:
        rows, columns = height // merge_size, width // merge_size
        end = first + frames * rows * columns
        if not token <= first or end > num_tokens:
            raise ValueError(f"an image's tokens {first} ... {end - 1} overlap others or go past {num_tokens} tokens")
        positions[token:first] = np.arange(position, position + first - token)[:, None]
        position += first - token
        positions[first:end] = position + np.indices((frames, rows, columns)).reshape(3, -1).T
        token, position = end, position + max(rows, columns)
    positions[token:] = np.arange(position, position + num_tokens - token)[:, None]
    return positions, int(positions.max(initial=-1)) + 1 - num_tokens
