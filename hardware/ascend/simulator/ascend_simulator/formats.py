"""Layouts of memory that are not rows: the fractal layout of matrices.

A matrix [.., m, n] lies as [.., n1, m1, m0, n0]: blocks of m0 rows and n0 columns, the blocks of a column one after
the other (github.com/hicann/docs, "FRACTAL_NZ"; torch_npu's `FormatHelper`). What is beyond the matrix is zero.
"""

from __future__ import annotations

import torch

ND = 2
FRACTAL_NZ = 29
BLOCK = 16
BLOCK_BYTES = 32
"""A row of a block: 16 elements of 2 bytes, 32 of one."""


def fractal_sizes(sizes: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...]:
    """The storage's sizes of a matrix [.., m, n]."""
    columns = BLOCK if dtype.itemsize >= 2 else BLOCK_BYTES // dtype.itemsize
    rows, width = sizes[-2:]
    return (*sizes[:-2], -(-width // columns), -(-rows // BLOCK), BLOCK, columns)


def to_fractal(matrix: torch.Tensor) -> torch.Tensor:
    """[.., m, n] -> [.., n1, m1, m0, n0]."""
    *batch, columns, rows, height, width = fractal_sizes(tuple(matrix.shape), matrix.dtype)
    padded = matrix.new_zeros((*batch, rows * height, columns * width))
    padded[..., : matrix.shape[-2], : matrix.shape[-1]] = matrix
    return padded.unflatten(-1, (columns, width)).unflatten(-3, (rows, height)).movedim(-2, -4).contiguous()


def from_fractal(storage: torch.Tensor, storage_sizes: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
    """The matrix [.., m, n] that lies in a flat storage of `storage_sizes` [.., n1, m1, m0, n0]."""
    blocks = storage[: torch.Size(storage_sizes).numel()].view(storage_sizes)
    matrix = blocks.movedim(-4, -2).flatten(-4, -3).flatten(-2, -1)
    return matrix[..., : sizes[-2], : sizes[-1]].reshape(sizes)
