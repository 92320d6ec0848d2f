"""Where the scales of a quantised weight go on this rank, derived from where the weight goes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trunnion.errors import UnsupportedError
from trunnion.interfaces.weights import Index, Placement

LEAST_COLUMNS = 32
"""Features that share a scale, at least: what a tensor core multiplies at once."""


@dataclass(frozen=True, kw_only=True)
class BlockScales:
    """Scales of a rank's `[num_rows, num_columns]` part of a weight, one per `rows` x `columns`.

    These are the checkpoint's blocks, or even parts of them where a cut over ranks, or the start of a fused part, lies
    within a block: then several scales here are the same one there.
    """

    rows: int
    columns: int
    shape: tuple[int, int]
    placements: Mapping[str, Placement]


def block_scales(
    placements: Mapping[str, Placement], size: tuple[int, int], block: tuple[int, int], name: str, *, stacked: int = 0
) -> BlockScales:
    """Of a weight of local `size` whose parts are placed so; the targets' first `stacked` entries name an expert.

    Raises:
        UnsupportedError: a cut of columns that is at no multiple of 32.
    """
    spans = {
        part: [_span(place, dim, place.target[stacked:], size) for dim in (0, 1)] for part, place in placements.items()
    }
    rows, columns = (
        math.gcd(block[dim], *(gap for span in spans.values() for gap in (span[dim].target, span[dim].shift)))
        for dim in (0, 1)
    )
    if columns < LEAST_COLUMNS:
        first = max(span[1].source for span in spans.values())
        raise UnsupportedError(
            f"{name}: this rank's columns start at {first}, within a block of {block[1]} and at no multiple of "
            f"{LEAST_COLUMNS}; choose another tp_size"
        )
    found = {}
    for part, place in placements.items():
        of_rows, of_columns = spans[part]
        source_rows, target_rows = of_rows.blocks(rows, block[0])
        source_columns, target_columns = of_columns.blocks(columns, block[1])
        assert isinstance(source_rows, slice) or isinstance(source_columns, slice), f"{name}: cut by rows and columns"
        found[part] = Placement(
            shape=(-(-place.shape[0] // block[0]), -(-place.shape[1] // block[1])),
            source=(source_rows, source_columns),
            target=(*place.target[:stacked], target_rows, target_columns),
            # A last block that is not full would hold the start of the next part too.
            fills_rows=place.shape[0] % block[0] == 0,
        )
    shape = (-(-size[0] // rows), -(-size[1] // columns))
    return BlockScales(rows=rows, columns=columns, shape=shape, placements=found)


def row_scales(placements: Mapping[str, Placement], *, per_row: bool, stacked: int = 0) -> dict[str, Placement]:
    """Of scales per row: the rows of the weight, or one number for all of a part's."""
    return {
        part: Placement(
            shape=place.shape[:1] if per_row else (),
            source=place.source[:1] if per_row else (),
            target=place.target[: stacked + 1],
            loose=True,
        )
        for part, place in placements.items()
    }


@dataclass(frozen=True)
class _Span:
    """Elements `source ... source + count - 1` of the checkpoint, at `target ...` here."""

    source: int
    target: int
    count: int

    @property
    def shift(self) -> int:
        return abs(self.source - self.target)

    def blocks(self, step: int, block: int) -> tuple[slice | list[int], slice]:
        """The checkpoint's block of each `step` elements here, and which these are."""
        first, last = self.target // step, -(-(self.target + self.count) // step)
        source = [(self.source + index * step - self.target) // block for index in range(first, last)]
        is_run = source == list(range(source[0], source[0] + len(source))) if source else True
        start = source[0] if source else 0
        return (slice(start, start + len(source)) if is_run else source), slice(first, last)


def _span(place: Placement, dim: int, target: Index, size: tuple[int, int]) -> _Span:
    """Along one dimension of the weight."""
    taken = place.source[dim] if len(place.source) > dim else slice(None)
    put = target[dim] if len(target) > dim else slice(None)
    assert isinstance(taken, slice) and isinstance(put, slice), "a quantised weight is cut into runs of rows or columns"
    start, stop, _ = taken.indices(place.shape[dim])
    return _Span(start, put.indices(size[dim])[0], stop - start)
