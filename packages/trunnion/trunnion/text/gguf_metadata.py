"""Read the key-value header of a GGUF file, and nothing else of it.

The `gguf` library makes an array of every string of a vocabulary, which takes seconds; a tokenizer needs the values.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

from trunnion.errors import ConfigError

# GGUF value type -> struct format; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Key -> number, bool, string or list of these.

    Raises:
        ConfigError: the file is not GGUF of version 2 or 3 in little-endian order, or ends within its header.
    """
    if path.stat().st_size < 24:
        raise ConfigError(f"{path} is not a GGUF file: it has only {path.stat().st_size} bytes")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as blob:
        reader = GGUFCursor(blob)
        try:
            return reader.read(path)
        except (struct.error, UnicodeDecodeError, EOFError) as error:
            raise ConfigError(f"{path} is truncated or damaged: {error} at byte {reader.at}") from error


class GGUFCursor:
    """A position in a mapped file; `weights.gguf_header` reads on where `read` stops."""

    def __init__(self, blob: mmap.mmap) -> None:
        self.blob = blob
        self.at = 0
        self.num_tensors = 0

    def read(self, path: Path) -> dict[str, Any]:
        if self.blob[:4] != b"GGUF":
            raise ConfigError(f"{path} is not a GGUF file: it begins with {self.blob[:4]!r}")
        self.at = 4
        version = self.number("I")
        if version not in (2, 3):
            raise ConfigError(f"{path} is GGUF version {version}; versions 2 and 3 in little-endian order are read")
        self.num_tensors = self.number("Q")
        return {self.string(): self.value(self.number("I")) for _ in range(self.number("Q"))}

    def number(self, form: str) -> Any:
        (value,) = struct.unpack_from("<" + form, self.blob, self.at)
        self.at += struct.calcsize("<" + form)
        return value

    def string(self) -> str:
        size = self.number("Q")
        raw = self.blob[self.at : self.at + size]
        if len(raw) != size:
            raise EOFError(f"a string of {size} bytes passes the end")
        self.at += size
        return raw.decode()

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(self.number("I"), self.number("Q"))
        if kind not in _SCALARS:
            raise EOFError(f"unknown value type {kind}")
        return self.number(_SCALARS[kind])

    def array(self, kind: int, count: int) -> list[Any]:
        if kind not in _SCALARS:
            return [self.value(kind) for _ in range(count)]
        form = f"<{count}{_SCALARS[kind]}"
        values = list(struct.unpack_from(form, self.blob, self.at))
        self.at += struct.calcsize(form)
        return values
