"""Triton kernels compiled ahead: which launches a wheel's cubins cover, and their launch without Triton."""

from __future__ import annotations

import functools
from pathlib import Path

from trunnion_cuda.ahead.cubins import Cubins

FOLDER = Path(__file__).resolve().parent / "cubins"
"""Only a wheel that was built with `--aot` has it."""


@functools.cache
def installed() -> Cubins | None:
    """The cubins of this wheel, or None: Triton compiles everything then."""
    return Cubins.of_device(FOLDER) if FOLDER.is_dir() else None
