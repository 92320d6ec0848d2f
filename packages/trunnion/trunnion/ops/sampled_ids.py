"""Input ids that the host does not know yet: they are taken on the device from where they were sampled."""

from __future__ import annotations

import torch

from trunnion.ops.registry import define


def _fake_like_ids(input_ids: torch.Tensor, sampled_ids: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(input_ids)


@define("take_sampled(Tensor input_ids, Tensor sampled_ids) -> Tensor", fake=_fake_like_ids)
def take_sampled(input_ids: torch.Tensor, sampled_ids: torch.Tensor) -> torch.Tensor:
    """Ids of -1 - r become `sampled_ids[r]`, others stay: [T], [R] -> [T], int32 all."""
    rows = (-1 - input_ids).clamp(0, sampled_ids.shape[0] - 1)
    return torch.where(input_ids < 0, sampled_ids.index_select(0, rows), input_ids)
