"""The user's cache folder: what was found out once on this machine, by content, and may be deleted at any time."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where compiled kernels, what was read from them and the tuner's choices are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "trunnion" / "cuda"
