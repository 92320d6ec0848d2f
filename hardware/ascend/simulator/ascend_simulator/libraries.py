"""Compiles the simulated CANN, once per content, into the user's cache folder, and loads it under CANN's names."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

SOURCES = Path(__file__).resolve().parent / "cann"
RUNTIME = "libascendcl.so"
"""Everything but operators."""
OPERATORS = "libopapi.so"
"""An entry point for every operator that a rule is written for."""
ALIASES = (
    "libhccl.so",
    "libacl_op_compiler.so",
    "libge_runner.so",
    "libgraph.so",
    "libacl_tdt_channel.so",
    "libnnopbase.so",
    "libatb.so",
)
"""Libraries of CANN that torch_npu links with or opens, of which nothing or only the runtime's names are used."""


def cache_folder() -> Path:
    """Where compiled code of the simulation lies."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trunnion" / "ascend-simulator"


def acl_headers() -> Path:
    """The headers of acl that torch_npu was compiled with, which its wheel carries.

    Raises:
        ModuleNotFoundError: torch_npu is not installed.
    """
    found = find_spec("torch_npu")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("torch_npu is not installed: its headers and its libraries are what is simulated for")
    return Path(found.origin).parent / "include"


def load(entry_points: str) -> ctypes.CDLL:
    """Load every library, so that torch_npu finds them by name, and return the runtime.

    Args:
        entry_points: C++ that defines the operators' entry points.
    """
    folder, runtime = _runtime()
    libraries = [
        runtime,
        *(_alias(name, folder, runtime) for name in ALIASES),
        _operators(entry_points, folder, runtime),
    ]
    loaded = [ctypes.CDLL(str(path)) for path in libraries]
    return loaded[0]


def _runtime() -> tuple[Path, Path]:
    sources = sorted(SOURCES.glob("*.cpp"))
    content = b"\0".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    return _compile(RUNTIME, [str(path) for path in sources], content)


def _alias(name: str, folder: Path, runtime: Path) -> Path:
    target = folder / name
    if not target.is_file():
        _link(target, ["-Wl,--no-as-needed", str(runtime), "-x", "c++", os.devnull])
    return target


def _operators(entry_points: str, folder: Path, runtime: Path) -> Path:
    key = hashlib.sha256(entry_points.encode()).hexdigest()[:16]
    target = folder / key / OPERATORS
    if not target.is_file():
        target.parent.mkdir(exist_ok=True)
        source = target.with_suffix(".cpp")
        source.write_text(entry_points)
        _link(target, [str(source), str(runtime)])
    return target


def _compile(name: str, arguments: Sequence[str], content: bytes) -> tuple[Path, Path]:
    key = hashlib.sha256("\0".join(_command(name)).encode() + content).hexdigest()[:16]
    target = cache_folder() / key / name
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        _link(target, arguments)
    return target.parent, target


def _command(name: str) -> list[str]:
    headers = [f"-isystem{acl_headers()}", f"-I{SOURCES}"]
    return ["c++", "-std=c++20", "-O1", "-shared", "-fPIC", *headers, f"-Wl,-soname,{name}"]


def _link(target: Path, arguments: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / target.name
        subprocess.run([*_command(target.name), *arguments, "-o", str(built)], check=True)
        # Renamed at the end, so that another process never loads half a library.
        built.rename(target)
