"""Versions of this distribution, written by `nox -s versions` from ci/versions.toml."""

from __future__ import annotations

VERSION = "0.1.0"
"""Version of this distribution."""

REQUIRES: dict[str, str] = {
    "torch": ">=2.13",
    "numpy": ">=1.26",
    "safetensors": ">=0.5",
    "gguf": ">=0.17",
    "tokenizers": ">=0.21",
    "jinja2": ">=3.1.6",
    "tqdm": ">=4.66",
    "typer": ">=0.15",
}
"""Distribution name -> version specifier that it must meet."""
