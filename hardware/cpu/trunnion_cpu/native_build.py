"""Builds the native operators of a source tree with CMake: into a wheel, or once per content into the user's cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

LIBRARY = "_native.so"
_LAST_LINES = 15


class BuildError(RuntimeError):
    """The native operators cannot be built here; the text says what is missing or what the compiler said."""


def build(sources: Path, target: Path) -> None:
    """Compile `sources` (the folder with CMakeLists.txt) to the file `target`.

    Raises:
        BuildError: no CMake, no compiler, no torch with headers, or code that does not compile.
    """
    cmake = shutil.which("cmake")
    if cmake is None:
        raise BuildError("cmake is not on PATH; pip install cmake ninja")
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        generator = ("-G", "Ninja") if shutil.which("ninja") else ()
        where = ("-S", str(sources), "-B", scratch, f"-DTRUNNION_TORCH={_torch_folder()}")
        _run(cmake, *generator, "-DCMAKE_BUILD_TYPE=Release", *where)
        _run(cmake, "--build", scratch, "--parallel", str(_at_once()))
        # Renamed at the end, so that another process never loads half a library.
        (Path(scratch) / LIBRARY).rename(target)


def build_once(sources: Path) -> Path:
    """The library of `sources` in the user's cache folder, compiled if no process has done so before.

    Raises:
        BuildError: as `build`.
    """
    folder = _cache_folder() / _key(sources)
    target = folder / LIBRARY
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_file():
            build(sources, target)
    return target


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trunnion" / "cpu"


def _key(sources: Path) -> str:
    """Of the sources and the compiler asked for; torch's stable ABI makes its version no part of it."""
    digest = hashlib.sha256(os.environ.get("CXX", "").encode())
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(sources)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _torch_folder() -> Path:
    found = find_spec("torch")
    if found is None or found.origin is None:
        raise BuildError("torch, whose headers the native operators include, is not installed")
    return Path(found.origin).parent


def _at_once() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        said = "\n".join(done.stdout.splitlines()[-_LAST_LINES:])
        raise BuildError(f"{' '.join(command[:2])} failed:\n{said}")
