"""Reads and checks the header of one safetensors file, so that a broken file is one line and never a wrong tensor."""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trunnion.errors import WeightsError

MAX_HEADER_BYTES = 100 * 2**20

TORCH_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}


@dataclass(frozen=True, kw_only=True)
class HeaderEntry:
    """One tensor of the file; `begin` and `end` count bytes from the start of the file."""

    stored: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(path: Path) -> dict[str, HeaderEntry]:
    """The tensors of `path` in file order; WeightsError if it is truncated, malformed, overlapping or has holes."""
    size = os.path.getsize(path)
    if size < 8:
        raise WeightsError(f"{path}: {size} bytes is too short for a safetensors file (download cut short?)")
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > MAX_HEADER_BYTES or 8 + length > size:
            raise WeightsError(f"{path}: header of {length} bytes does not fit a file of {size} bytes: truncated?")
        raw = file.read(length)
    try:
        header = json.loads(raw, object_pairs_hook=_unique_keys)
    except ValueError as error:
        raise WeightsError(f"{path}: header is not JSON: {_one_line(error)}") from None
    if not isinstance(header, dict):
        raise WeightsError(f"{path}: header is not a JSON object")
    header.pop("__metadata__", None)
    entries = {name: _entry(path, name, spec, 8 + length) for name, spec in header.items()}
    ordered = dict(sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)))
    _check_layout(path, ordered, 8 + length, size)
    return ordered


def _entry(path: Path, name: str, spec: Any, data_start: int) -> HeaderEntry:
    def is_sizes(value: Any) -> bool:
        return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)

    if not isinstance(spec, dict) or not isinstance(spec.get("dtype"), str) or not is_sizes(spec.get("shape")):
        raise WeightsError(f"{path}: header entry of {name!r} lacks dtype or shape")
    offsets: Any = spec.get("data_offsets")
    if not is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise WeightsError(f"{path}: header entry of {name!r} has data_offsets {offsets!r}")
    dtype = TORCH_DTYPES.get(spec["dtype"])
    if dtype is not None:
        needed = math.prod(spec["shape"]) * dtype.itemsize
        if needed != offsets[1] - offsets[0]:
            raise WeightsError(
                f"{path}: {name!r} needs {needed} bytes for {spec['dtype']} {spec['shape']}, "
                f"its data_offsets span {offsets[1] - offsets[0]}"
            )
    return HeaderEntry(
        stored=spec["dtype"],
        shape=tuple(spec["shape"]),
        begin=data_start + offsets[0],
        end=data_start + offsets[1],
    )


def _check_layout(path: Path, entries: dict[str, HeaderEntry], data_start: int, size: int) -> None:
    position, previous = data_start, "the header"
    for name, entry in entries.items():
        if entry.begin < position:
            raise WeightsError(f"{path}: {name!r} overlaps {previous!r}")
        if entry.begin > position:
            raise WeightsError(f"{path}: hole of {entry.begin - position} bytes before {name!r}")
        position, previous = entry.end, name
    if position > size:
        name = next(name for name, entry in entries.items() if entry.end > size)
        raise WeightsError(f"{path}: truncated: {name!r} ends at byte {entries[name].end}, the file at {size}")
    if position < size:
        raise WeightsError(f"{path}: {size - position} bytes after the last tensor belong to none")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"{key!r} appears twice")
        out[key] = value
    return out


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
