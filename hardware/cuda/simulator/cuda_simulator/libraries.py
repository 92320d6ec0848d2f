"""Compiles the simulation's two libraries, once per content, into the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
LIBRARY_NAMES = {"runtime": "libcudart.so.13", "driver": "libcuda.so.1"}
"""What the dynamic linker looks for; a library that is loaded already under this name is taken."""


def cache_folder() -> Path:
    """Where compiled code of the simulation lies."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "trunnion" / "cuda-simulator"


def modules_folder() -> Path:
    """Where FlashInfer compiles: a folder for each environment, or two would compile over each other's modules."""
    found = find_spec("flashinfer")
    key = hashlib.sha256(f"{found and found.origin} {shutil.which('nvcc')}".encode()).hexdigest()[:16]
    return cache_folder() / f"flashinfer-{key}"


def device_library() -> Path:
    """The backend under torch's CUDA key."""
    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    folder = Path(torch.__file__).parent / "lib"
    links = [f"-L{folder}", "-ltorch", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{folder}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"
    return _compile(HERE / "device.cpp", "libsimulated_device.so", "-std=c++20", abi, *includes, after=links)


def runtime_library() -> Path:
    """The CUDA runtime without a device."""
    name = LIBRARY_NAMES["runtime"]
    return _compile(HERE / "runtime.cpp", name, "-std=c++17", f"-Wl,-soname,{name}")


def driver_library() -> Path:
    """The CUDA driver without a device."""
    name = LIBRARY_NAMES["driver"]
    return _compile(HERE / "driver.cpp", name, f"-Wl,-soname,{name}")


def link_folder() -> Path:
    """Where a linker finds `-lcuda`, and `-lcudart` if the toolkit has none under that name (PyPI's has not)."""
    folder = driver_library().parent
    for library, plain in ((driver_library(), "libcuda.so"), (runtime_library(), "libcudart.so")):
        link = folder / plain
        if link.resolve() != library.resolve():
            # Renamed onto its place: another process may link at this moment.
            partial = folder / f"{plain}.{os.getpid()}"
            partial.symlink_to(library)
            partial.replace(link)
    return folder


def _compile(source: Path, name: str, *options: str, after: list[str] | None = None) -> Path:
    command = ["c++", "-O1", "-shared", "-fPIC", *options]
    key = hashlib.sha256("\0".join([torch.__version__, *command, *(after or ())]).encode() + source.read_bytes())
    target = cache_folder() / key.hexdigest()[:16] / name
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        built = Path(scratch) / name
        subprocess.run([*command, str(source), "-o", str(built), *(after or ())], check=True)
        # Renamed at the end, so that another process never loads half a library.
        built.rename(target)
    return target
