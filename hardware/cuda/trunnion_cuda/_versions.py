"""Versions of this distribution, written by `nox -s versions` from ci/versions.toml."""

from __future__ import annotations

VERSION = "0.1.0"
"""Version of this distribution."""

REQUIRES: dict[str, str] = {
    "trunnion": "==0.1.0",
    "torch": "==2.13.0",
    "numpy": ">=1.26",
    "tqdm": ">=4.66",
    "triton": "==3.7.1",
    "tilelang": "==0.1.15",
    "flashinfer-python": "==0.7.4",
}
"""Distribution name -> version specifier that it must meet."""
