"""The tuner's choices in the user's cache folder, by all that they depend on: device, compilers, kernels' sources."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from trunnion_cuda.kernels.tuning import Key, Tuner
from trunnion_cuda.user_cache import cache_folder

Choice = tuple[str, Key, int]


@dataclass(frozen=True)
class ChoicesFile:
    """A file of one device and one state of the sources; every model's choices go in it."""

    path: Path

    def load(self, tuner: Tuner) -> str | None:
        """Have the tuner take what is there -> what is wrong with the file, or None; an absent one is empty."""
        try:
            tuner.take(self._read())
        except (OSError, ValueError) as error:
            return f"{self.path} cannot be read, and is ignored: {error}"
        return None

    def save(self, tuner: Tuner) -> str | None:
        """Add the tuner's choices to what is there -> why they could not be kept, or None."""
        try:
            there = self._read()
        except (OSError, ValueError):
            there = []
        kept = {(name, key): index for name, key, index in there} | dict(tuner.choices())
        content = [[name, list(key), index] for (name, key), index in sorted(kept.items(), key=repr)]
        # Ranks of one machine write the same file.
        partial = self.path.with_suffix(f".{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(content))
            partial.replace(self.path)
        except OSError as error:
            return f"{self.path} cannot be written, the next start will time again: {error}"
        return None

    def _read(self) -> list[Choice]:
        """ValueError: another content than `save` writes."""
        if not self.path.exists():
            return []
        content = json.loads(self.path.read_text())
        if not isinstance(content, list):
            raise ValueError(f"expected a list, got {type(content).__name__}")
        return [_choice(entry) for entry in content]


def choices_file(device: torch.device) -> ChoicesFile:
    """Of this device's name and architecture, these versions of compilers, and these sources of kernels."""
    digest = hashlib.sha256(json.dumps(_identity(device)).encode()).hexdigest()
    return ChoicesFile(cache_folder() / "tuned" / f"{digest[:32]}.json")


def _choice(entry: object) -> Choice:
    match entry:
        case [str(name), [*key], int(index)] if index >= 0 and key and isinstance(key[-1], int):
            if all(part is None or isinstance(part, (int, str)) for part in key):
                return name, tuple(key), index
    raise ValueError(f"no choice: {entry!r}")


def _identity(device: torch.device) -> Mapping[str, object]:
    return {
        "device": torch.cuda.get_device_name(device),
        "architecture": torch.cuda.get_device_capability(device),
        "compilers": {name: _version(name) for name in ("triton", "tilelang")},
        "kernels": _digest(sorted((Path(__file__).parent / "kernels").glob("*.py"))),
    }


def _digest(files: Iterable[Path]) -> str:
    """Of all kernels: most use another's functions, and a choice is timed again in seconds."""
    found = hashlib.sha256()
    for file in files:
        found.update(file.read_bytes())
    return found.hexdigest()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
