"""The C++ side of trunnion: where its library and headers lie."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def library_path() -> Path:
    """The shared library that exports the functions of `trunnion/contract.h` and `trunnion/serving.h`.

    Raises:
        FileNotFoundError: the package is on the path as source, without the library that its installation builds.
    """
    spec = find_spec("trunnion_host._host")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("trunnion-host is not built; install it: pip install packages/trunnion-host")
    return Path(spec.origin)


def include_path() -> Path:
    """The folder to compile C and C++ hosts with: `#include "trunnion/contract.h"`."""
    installed = library_path().parent / "include"
    return installed if installed.is_dir() else Path(__file__).resolve().parents[1] / "include"
