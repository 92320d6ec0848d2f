"""Ids that are taken from where they were sampled."""

from __future__ import annotations

import torch

import trunnion.ops  # noqa: F401  (registers the operators)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_negative_ids_name_rows() -> None:
    taken = torch.ops.trunnion.take_sampled(ints(7, -1, 0, -3, -2), ints(40, 41, 42))
    assert taken.dtype == torch.int32
    assert taken.tolist() == [7, 40, 0, 42, 41]


def test_what_padding_holds_stays_inside() -> None:
    assert torch.ops.trunnion.take_sampled(ints(-900, 5), ints(1, 2)).tolist() == [2, 5]
