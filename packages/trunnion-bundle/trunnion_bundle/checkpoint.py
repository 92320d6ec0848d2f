"""Collects the weights of all modules, each tensor once, and writes them as safetensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from trunnion_bundle.errors import BundleError
from trunnion_bundle.requests import Array, contiguous

LARGEST_FILE = 4 << 30
"""Bytes after which another file is begun."""


class Checkpoint:
    """Tensors by key. What has equal bytes, dtype and shape is kept once."""

    def __init__(self) -> None:
        self._tensors: dict[str, Array] = {}
        self._keys: dict[str, str] = {}

    @classmethod
    def of(cls, files: Mapping[str, Path]) -> Checkpoint:
        """What is written already: key -> file."""
        found = cls()
        for key, path in files.items():
            with safe_open(path, "np") as file:
                found._keys[content_of(file.get_tensor(key))] = key
        return found

    @property
    def tensors(self) -> Mapping[str, Array]:
        return self._tensors

    def add(self, name: str, array: Array, module: str) -> str:
        """The key of `array`: `name`, or `module.name` if another tensor has that, or the key of an equal one.

        Raises:
            BundleError: both names are taken by other tensors.
        """
        content = content_of(array)
        if content in self._keys:
            return self._keys[content]
        for key in (name, f"{module}.{name}"):
            if key not in self._tensors:
                self._tensors[key] = array
                self._keys[content] = key
                return key
        raise BundleError(f"two tensors are named {module}.{name}; give the modules other names")

    def find(self, array: Array) -> str | None:
        """The key of an equal tensor."""
        return self._keys.get(content_of(array))

    def write(self, folder: Path) -> tuple[str, ...]:
        """Write all tensors to files in `folder`; the files' names, sorted."""
        shards: list[dict[str, Array]] = []
        size = LARGEST_FILE
        for key, array in self._tensors.items():
            if size + array.nbytes > LARGEST_FILE and (not shards or shards[-1]):
                shards.append({})
                size = 0
            shards[-1][key] = contiguous(array)
            size += array.nbytes
        names = [f"weights-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
        if len(shards) == 1:
            names = ["weights.safetensors"]
        for name, shard in zip(names, shards, strict=True):
            save_file(shard, folder / name)
            # safetensors keeps others from reading; a server may be another user.
            (folder / name).chmod(0o644)
        return tuple(names)


def content_of(array: Array) -> str:
    """What equal tensors have in common."""
    digest = hashlib.sha256(f"{array.dtype} {array.shape} ".encode())
    # A view: tables are large.
    digest.update(contiguous(array).reshape(-1).view(np.uint8))
    return digest.hexdigest()
