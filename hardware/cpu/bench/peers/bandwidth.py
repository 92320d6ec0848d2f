"""How fast this machine's memory is read by so many threads, measured by a program compiled once into a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "read_bandwidth.cc"


class ReadBandwidth:
    """Compiles the program when it is made.

    Raises:
        RuntimeError: there is no C++ compiler, or it refused the program.
    """

    def __init__(self, folder: Path, threads: int) -> None:
        names = os.environ.get("CXX", "").split() or [name for name in ("c++", "g++", "clang++") if shutil.which(name)]
        if not names:
            raise RuntimeError("no C++ compiler: set CXX, or install c++, g++ or clang++")
        program = folder / "read_bandwidth"
        command = [names[0], "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:500]}")
        self._command = (str(program), str(threads))

    def measure(self) -> float:
        """Bytes per second."""
        done = subprocess.run(self._command, capture_output=True, text=True, check=True)
        return float(done.stdout.split()[0])
