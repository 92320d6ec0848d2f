"""Programs of C++ that belong to the bundle's commands: where they are, and running them in this process's place."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from trunnion_bundle.errors import BundleError

SERVER = "trunnion-serve-bundle"
BIN = Path(__file__).resolve().parent / "bin"
"""Where a wheel has them."""


def find_program(name: str) -> Path:
    """The program of the wheel, or one on PATH.

    Raises:
        BundleError: there is none.
    """
    if (BIN / name).is_file():
        return BIN / name
    if found := shutil.which(name):
        return Path(found)
    raise BundleError(f"no program {name}; install the wheel of trunnion-bundle that has it, or put it on PATH")


def replace_process(name: str, arguments: Sequence[str]) -> int:
    """Run the program instead of this process; it does not return."""
    path = find_program(name)
    os.execve(path, [str(path), *arguments], program_environment())


def program_environment() -> dict[str, str]:
    """This process's variables, by which engines also find the torch of this interpreter.

    They look beside the installed package by themselves; torch may lie elsewhere, in a user's or the system's folder.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return dict(os.environ)
    places = [str(Path(found.origin).parent / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, places))}
