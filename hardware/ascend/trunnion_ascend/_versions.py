"""Versions of this distribution, written by `nox -s versions` from ci/versions.toml."""

from __future__ import annotations

VERSION = "0.1.0"
"""Version of this distribution."""

REQUIRES: dict[str, str] = {
    "trunnion": "==0.1.0",
    "torch": "==2.13.0",
    "numpy": ">=1.26",
    "torch_npu": "==2.13.0",
}
"""Distribution name -> version specifier that it must meet."""
