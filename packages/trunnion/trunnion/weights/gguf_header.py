"""Reads and checks the list of tensors of a GGUF file, after the key-value header.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` library's own reader builds an array for
every string of the vocabulary, which takes seconds; only its block sizes and its dequantisation are used.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from trunnion.errors import ConfigError, UnsupportedError, WeightsError
from trunnion.text.gguf_metadata import GGUFCursor

MAX_DIMENSIONS = 4
DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, kw_only=True)
class GGUFTensor:
    """One tensor as stored: `shape` is in torch's order (rows first), `begin` counts from the start of the file."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    nbytes: int


def read_gguf_header(path: Path) -> tuple[dict[str, Any], dict[str, GGUFTensor]]:
    """Metadata and tensors of `path`.

    Raises:
        ConfigError: not a GGUF file, or damaged before the tensors.
        WeightsError: tensors are duplicated, overlap, or lie past the end.
        UnsupportedError: one part of a split model, or a storage type the `gguf` library does not know.
    """
    size = path.stat().st_size
    if size < 24:
        raise ConfigError(f"{path}: {size} bytes is too short for a GGUF file (download cut short?)")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as blob:
        cursor = GGUFCursor(blob)
        try:
            metadata = cursor.read(path)
            listed = [_read_tensor(path, cursor) for _ in range(cursor.num_tensors)]
        except (struct.error, UnicodeDecodeError, EOFError, OverflowError, MemoryError) as error:
            raise ConfigError(f"{path}: truncated or damaged at byte {cursor.at}: {error}") from None
        end_of_header = cursor.at
    if metadata.get("split.count", 1) > 1:
        raise UnsupportedError(
            f"{path}: one of {metadata['split.count']} parts; merge them with llama-gguf-split --merge"
        )
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ConfigError(f"{path}: general.alignment is {alignment!r}")
    data_start = -(-end_of_header // alignment) * alignment
    return metadata, _place(path, listed, data_start, size)


def _read_tensor(path: Path, cursor: GGUFCursor) -> GGUFTensor:
    name = cursor.string()
    dimensions = cursor.number("I")
    if dimensions > MAX_DIMENSIONS:
        raise WeightsError(f"{path}: {name!r} has {dimensions} dimensions, at most {MAX_DIMENSIONS} are possible")
    shape = tuple(reversed([cursor.number("Q") for _ in range(dimensions)]))
    kind, offset = cursor.number("I"), cursor.number("Q")
    if kind not in set(GGMLQuantizationType):
        raise UnsupportedError(f"{path}: {name!r} has the unknown storage type {kind}; is the gguf library too old?")
    stored = GGMLQuantizationType(kind)
    block, block_bytes = GGML_QUANT_SIZES[stored]
    if shape and shape[-1] % block:
        raise WeightsError(f"{path}: {name!r} {list(shape)} does not divide into {stored.name} blocks of {block}")
    return GGUFTensor(name=name, type=stored, shape=shape, begin=offset, nbytes=math.prod(shape) // block * block_bytes)


def _place(path: Path, listed: list[GGUFTensor], data_start: int, size: int) -> dict[str, GGUFTensor]:
    """Turn offsets into positions in the file and check that tensors are unique, apart, and inside it."""
    placed: dict[str, GGUFTensor] = {}
    end, previous = data_start, "the header"
    for tensor in sorted(listed, key=lambda tensor: tensor.begin):
        begin = data_start + tensor.begin
        if tensor.name in placed:
            raise WeightsError(f"{path}: duplicated tensor {tensor.name!r}")
        if begin < end:
            raise WeightsError(f"{path}: {tensor.name!r} overlaps {previous!r}")
        end, previous = begin + tensor.nbytes, tensor.name
        if end > size:
            raise WeightsError(f"{path}: truncated: {tensor.name!r} ends at byte {end}, the file at {size}")
        placed[tensor.name] = GGUFTensor(
            name=tensor.name, type=tensor.type, shape=tensor.shape, begin=begin, nbytes=tensor.nbytes
        )
    return placed
