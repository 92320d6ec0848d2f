"""The checkpoint of a bundle: which file has which tensor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open

from trunnion_bundle.errors import BundleError


def key_to_file(folder: Path, weights: Iterable[str]) -> dict[str, Path]:
    """Tensor's key -> file.

    Raises:
        BundleError: a file is no safetensors, or a key is in two files.
    """
    found: dict[str, Path] = {}
    for name in weights:
        path = folder / name
        try:
            with safe_open(path, "np") as file:
                keys = list(file.keys())
        except (SafetensorError, OSError) as error:
            raise BundleError(f"{path}: no safetensors: {error}") from None
        for key in keys:
            if key in found:
                raise BundleError(f"{path}: the tensor {key!r} is also in {found[key]}")
            found[key] = path
    return found
