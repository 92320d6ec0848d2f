"""The native operators: their library, found or built, and the instruction set that is chosen for this process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from trunnion.errors import UnsupportedError
from trunnion_cpu.native_build import LIBRARY, BuildError, build_once

VARIABLE = "TRUNNION_CPU_ISA"
"""Environment variable: a set of kernels by name, in place of the best that this processor has, or OFF."""
OFF = "reference"
"""Value of VARIABLE that leaves the native operators out."""
_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Native:
    """The library, loaded: `torch.ops.trunnion_cpu` has its operators."""

    path: Path
    isas: tuple[str, ...]
    """Sets of kernels that this processor can run, best first."""
    library: ctypes.CDLL

    @property
    def isa(self) -> str:
        """The set of kernels that runs."""
        name: bytes = self.library.trunnion_cpu_chosen_isa()
        return name.decode()

    def choose(self, isa: str) -> None:
        """Run `isa` from now on, in the whole process.

        Raises:
            UnsupportedError: this processor or this build has no such kernels.
        """
        if self.library.trunnion_cpu_choose_isa(isa.encode()):
            choices = ", ".join((*self.isas, OFF))
            raise UnsupportedError(f"{VARIABLE}={isa!r} is no set of kernels of this processor; choices: {choices}")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Meanwhile operators called on this thread have torch's threads to themselves; torch's own have one.

        A thread of OpenMP spins for milliseconds after the work of one small torch operator: on the core where a thread
        of the native operators would go on.
        """
        threads = torch.get_num_threads()
        self.library.trunnion_cpu_set_threads(threads)
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
            self.library.trunnion_cpu_set_threads(0)


@dataclass(frozen=True)
class Absent:
    """Why there are no native operators."""

    reason: str
    is_wanted: bool
    """Whether VARIABLE says so."""


@cache
def native() -> Native | Absent:
    """The process's native operators, with the instruction set that VARIABLE names.

    An installed package brings them. In a source tree they are built when they are first asked for.

    Raises:
        UnsupportedError: VARIABLE names no set of kernels of this processor.
    """
    isa = os.environ.get(VARIABLE, "")
    if isa == OFF:
        return Absent(f"{VARIABLE}={OFF}", is_wanted=True)
    try:
        path = _find()
    except BuildError as error:
        return Absent(str(error), is_wanted=False)
    torch.ops.load_library(str(path))
    library = ctypes.CDLL(str(path))
    for function in (library.trunnion_cpu_isa, library.trunnion_cpu_chosen_isa):
        function.restype = ctypes.c_char_p
    library.trunnion_cpu_set_threads.argtypes = (ctypes.c_int64,)
    _declare_programs(library)
    names: list[str] = []
    while (name := library.trunnion_cpu_isa(len(names))) is not None:
        names.append(name.decode())
    found = Native(path, tuple(names), library)
    if isa:
        found.choose(isa)
    return found


def _declare_programs(library: ctypes.CDLL) -> None:
    program, count = ctypes.c_void_p, ctypes.c_int64
    library.trunnion_cpu_program_create.restype = program
    library.trunnion_cpu_program_size.restype = count
    library.trunnion_cpu_program_run.restype = ctypes.c_char_p
    library.trunnion_cpu_program_run.argtypes = (program, count, count)
    library.trunnion_cpu_program_forget_from.argtypes = (program, count)
    for name in ("record", "size", "destroy", "take_spoilt"):
        getattr(library, f"trunnion_cpu_program_{name}").argtypes = (program,)


def native_state(found: Native | Absent) -> str:
    """In a few words, for reports."""
    if isinstance(found, Absent):
        return f"none: {found.reason}"
    return f"{found.isa} (of {', '.join(found.isas)})"


def _find() -> Path:
    """Beside this file in a wheel; built from the sources next to the package in a source tree."""
    installed = _PACKAGE / LIBRARY
    if installed.is_file():
        return installed
    sources = _PACKAGE.parent / "csrc"
    if not sources.is_dir():
        raise BuildError(f"{installed} does not exist, nor do its sources")
    return build_once(sources)
