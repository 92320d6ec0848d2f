"""Keeps what one module was given and made on both sides, in a safetensors file."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from trunnion.compare.recording import Call


def save_outputs(path: Path, module: str, here: Call, there: Call) -> None:
    """Write float32 tensors [T, features] `here` and `there`, and `here.given` and `there.given` where there are any.

    The module's name is in the metadata.
    """
    found = {"here": here.made, "there": there.made, "here.given": here.given, "there.given": there.given}
    tensors = {name: rows.contiguous() for name, rows in found.items() if rows is not None}
    save_file(tensors, path, {"module": module})
