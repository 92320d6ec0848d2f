"""Versions of this distribution, written by `nox -s versions` from ci/versions.toml."""

from __future__ import annotations

VERSION = "0.1.0"
"""Version of this distribution."""

REQUIRES: dict[str, str] = {
    "numpy": ">=1.26",
    "safetensors": ">=0.5",
    "ml-dtypes": ">=0.5",
}
"""Distribution name -> version specifier that it must meet."""
