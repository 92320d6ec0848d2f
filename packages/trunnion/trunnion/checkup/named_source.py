"""A checkpoint of which only the index is there: an account can be drawn up of its names, and of nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import nn

from trunnion.interfaces.weights import placements_of
from trunnion.weights.name_map import Ignored, Refused, WeightMap
from trunnion.weights.source import TensorInfo

TOLD_BY_NAMES = ("missing", "unexpected", "duplicated")
"""What an account of such a source can find wrong; shapes and dtypes it does not know."""


class NamedSource:
    """`names` as a `WeightSource` for `model`, to draw up an account of; it has no tensors to yield."""

    def __init__(self, description: str, names: Sequence[str], model: nn.Module, weight_map: WeightMap) -> None:
        self._description = description
        params = dict(model.named_parameters(remove_duplicate=False))
        self._infos = {name: _info(name, params, weight_map) for name in names}

    @property
    def description(self) -> str:
        return self._description

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        return self._infos

    def tensors(self, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
        raise AssertionError(f"{self._description} has names of tensors alone")


def _info(name: str, params: Mapping[str, torch.Tensor], weight_map: WeightMap) -> TensorInfo:
    """Without a shape, in the dtype that is wanted: a tensor of another one would count as none."""
    resolved = weight_map.resolve(name)
    dtype: torch.dtype | None = torch.float32
    if not isinstance(resolved, Ignored | Refused) and (parameter := params.get(resolved[0].param)) is not None:
        placement = placements_of(parameter).get(resolved[0].part.split("+")[0])
        recoding = None if placement is None else placement.recoding
        dtype = parameter.dtype if recoding is None else recoding.dtype or torch.bfloat16
    return TensorInfo(shape=(), stored="?", nbytes=0, file="", dtype=dtype)
