"""Builds the C++ of trunnion-bundle once per content, into the user's cache folder; as a program, says where."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
SUFFIXES = {".c", ".cc", ".cmake", ".h", ".in", ".inc", ".proto", ".txt"}
SYSTEM_PACKAGES = PACKAGE / "system-packages.txt"


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trunnion" / "bundle"


def torch_definitions() -> tuple[str, ...]:
    """What also builds the engine of AOTInductor, where this environment has torch."""
    found = importlib.util.find_spec("torch")
    return (f"-DTRUNNION_BUNDLE_TORCH={Path(found.origin).parent}",) if found and found.origin else ()


def build(*definitions: str) -> Path:
    """The folder of built programs; RuntimeError carries the compiler's output."""
    key = hashlib.sha256("\0".join([*definitions, sys.prefix]).encode())
    folders = (PACKAGE / name for name in ("include", "src", "proto", "cmake", "tests/native"))
    files = [PACKAGE / "CMakeLists.txt", *(path for folder in folders for path in folder.rglob("*"))]
    for path in sorted(path for path in files if path.suffix in SUFFIXES):
        key.update(str(path.relative_to(PACKAGE)).encode() + path.read_bytes())
    # One folder per place of the sources, so that a change compiles only what it touches.
    place = hashlib.sha256("\0".join([str(PACKAGE), *definitions]).encode()).hexdigest()[:16]
    folder = cache_folder() / place
    done = folder / "built.txt"
    if done.is_file() and done.read_text() == key.hexdigest():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    _make(folder, definitions)
    done.write_text(key.hexdigest())
    return folder


def _make(folder: Path, definitions: Sequence[str]) -> None:
    cmake = _tool("cmake")
    ninja = ("-G", "Ninja") if shutil.which("ninja") else ()
    options = ("-DTRUNNION_BUNDLE_TESTS=ON", "-DTRUNNION_BUNDLE_WERROR=ON", *definitions)
    jobs = os.environ.get("TRUNNION_BUILD_JOBS", "2")
    for command in (
        (cmake, *ninja, *options, "-S", str(PACKAGE), "-B", str(folder)),
        (cmake, "--build", str(folder), "--parallel", jobs),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            needed = " ".join(SYSTEM_PACKAGES.read_text().split())
            raise RuntimeError(
                f"{' '.join(command)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}\nit needs the packages {needed}"
            )


def _tool(name: str) -> str:
    """A build tool beside this interpreter or on the PATH."""
    places = os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ.get("PATH", "")])
    if found := shutil.which(name, path=places):
        return found
    raise RuntimeError(f"{name} is not installed; it is needed to build trunnion-bundle")


def definitions(sanitizer: str | None) -> tuple[str, ...]:
    """Of the build that tests use; torch is not instrumented, and so left out of one that is."""
    return (f"-DTRUNNION_BUNDLE_SANITIZE={sanitizer}",) if sanitizer else torch_definitions()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sanitize", choices=("address", "thread"))
    print(build(*definitions(parser.parse_known_args()[0].sanitize)))
