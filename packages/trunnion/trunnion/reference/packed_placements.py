"""Where the packed values of a weight go on this rank, and what a checkpoint stores beside them that nobody needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from trunnion.errors import UnsupportedError
from trunnion.interfaces.quantization import GroupedInt, IntLayout
from trunnion.interfaces.weights import Known, Placement, Recoding
from trunnion.reference.int_layouts import NAMES, per_word, weight_recoding


def packed_placements(scheme: GroupedInt, placements: Mapping[str, Placement]) -> dict[str, Placement]:
    """Of values [rows, columns * bits / 8], from those of the unquantised weight [rows, columns]."""
    per_byte = 8 // scheme.bits
    found = {}
    for part, place in placements.items():
        rows, columns = place.shape
        found[part] = Placement(
            shape=(rows, columns // per_byte),
            source=(*place.source[:1], *(_in_bytes(cut, per_byte) for cut in place.source[1:])),
            target=place.target,
            recoding=weight_recoding(scheme),
        )
    return found


def recoded(placements: Mapping[str, Placement], recoding: Recoding | None) -> dict[str, Placement]:
    """The same places, for tensors that are stored otherwise."""
    return {part: dataclasses.replace(place, recoding=recoding) for part, place in placements.items()}


def check_words(scheme: GroupedInt, placements: Mapping[str, Placement], prefix: str) -> None:
    """UnsupportedError if features do not fill the words of a checkpoint."""
    words = per_word(scheme)
    for part, place in placements.items():
        for what, count in zip(("out_features", "in_features"), place.shape, strict=True):
            if count % words:
                name = f"{prefix}[{part}]" if part else prefix
                raise UnsupportedError(
                    f"{name}: {what} {count} of {scheme.bits} bits do not fill words of 32 bits; "
                    f"choices: multiples of {words}"
                )


def known_tensors(
    scheme: GroupedInt, sizes: Mapping[str, tuple[int, ...]], prefix: str = ""
) -> dict[tuple[str, str], Known]:
    """Of weights of `sizes`, by (name, part): what the layouts store beside; names begin with `prefix`."""
    found = {}
    for part, size in sizes.items():
        if scheme.layout is IntLayout.COMPRESSED:
            found[f"{prefix}weight_shape", part] = _shape(size)
        elif scheme.layout in (IntLayout.GPTQ, IntLayout.GPTQ_V2):
            found[f"{prefix}bias", part] = Known(
                expected="zeros, since the model has no bias there", holds=lambda stored: not stored.any()
            )
            if not scheme.is_ordered:
                found[f"{prefix}{NAMES[scheme.layout].groups}", part] = _runs(size[1], scheme.group_size)
    return found


def _in_bytes(cut: object, per_byte: int) -> slice:
    assert isinstance(cut, slice), "the features of a packed weight are cut into runs"
    if cut.start is None:
        return cut
    assert cut.start % per_byte == 0 == cut.stop % per_byte, "a cut within a byte"
    return slice(cut.start // per_byte, cut.stop // per_byte)


def _shape(shape: tuple[int, ...]) -> Known:
    return Known(expected=str(list(shape)), holds=lambda stored: stored.tolist() == list(shape))


def _runs(columns: int, group_size: int | None) -> Known:
    size = group_size or columns
    return Known(
        expected=f"runs of {size} neighbours, since the config says neither desc_act nor actorder",
        holds=lambda stored: torch.equal(stored.long(), torch.arange(columns) // size),
    )
