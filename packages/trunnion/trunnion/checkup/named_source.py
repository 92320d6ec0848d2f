"""A checkpoint of which only the index is there: names are known, and shapes are taken to be those that are wanted."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import torch
from torch import nn

from trunnion.interfaces.weights import Placement, placements_of
from trunnion.weights.name_map import Ignored, Refused, Target, WeightMap
from trunnion.weights.source import TensorInfo

TOLD_BY_NAMES = ("missing", "unexpected", "duplicated")
"""What an account of such a source may find wrong."""


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
    resolved = weight_map.resolve(name)
    shape: tuple[int, ...] = ()
    dtype: torch.dtype | None = torch.float32
    if not isinstance(resolved, Ignored | Refused) and (parameter := params.get(resolved[0].param)) is not None:
        wanted = _wanted(resolved[0], placements_of(parameter))
        if wanted:
            shape, recoding = _shape(resolved[0], wanted), wanted[0].recoding
            dtype = parameter.dtype if recoding is None else recoding.dtype or torch.bfloat16
    return TensorInfo(shape=shape, stored="?", nbytes=0, file="", dtype=dtype)


def _wanted(target: Target, placements: Mapping[str, Placement]) -> list[Placement]:
    """The placements that one tensor fills: a part, several, or those of all experts."""
    if target.part.startswith("*."):
        parts = target.part.removeprefix("*.").split("_")
        return [place for part in parts for key, place in placements.items() if key.endswith(f".{part}")]
    return [placements[part] for part in target.part.split("+") if part in placements]


def _shape(target: Target, wanted: Sequence[Placement]) -> tuple[int, ...]:
    if target.part.startswith("*."):
        parts = len(target.part.split("_"))
        rows, *columns = wanted[0].shape
        return (len(wanted) // parts, rows * parts, *columns)
    if len(wanted) == 1 or not wanted[0].shape:
        return wanted[0].stored_shape
    whole = (sum(place.shape[0] for place in wanted), *wanted[0].shape[1:])
    return Placement(shape=whole, loose=wanted[0].loose, recoding=wanted[0].recoding).stored_shape
