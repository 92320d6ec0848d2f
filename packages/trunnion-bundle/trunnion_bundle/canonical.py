"""Canonical JSON, and hashes of bytes and files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from trunnion_bundle.errors import BundleError

CHUNK = 1 << 20


def text(value: Any) -> str:
    """`value` as a file: indented, keys sorted, one line feed at the end."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def line(value: Any) -> str:
    """`value` on one line without white space; no line feed."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def parse(data: bytes, where: str, form: Callable[[Any], str] = text) -> Any:
    """The value that `form` (`text` or `line`) writes as `data`.

    Raises:
        BundleError: `data` is no JSON, or not written canonically: a key twice, an unsorted key, other white space.
    """
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
        is_canonical = form(value).encode() == data
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{where}: no JSON: {error}") from None
    if not is_canonical:
        raise BundleError(f"{where}: not canonical: keys sorted and named once; let trunnion_bundle write it")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def sha256(data: bytes) -> str:
    """Hexadecimal SHA-256 of bytes."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
