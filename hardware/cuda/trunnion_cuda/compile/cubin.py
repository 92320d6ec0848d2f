"""What a cubin uses, read with the tools that come with Triton; remembered by content in the user's cache folder."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import triton

from trunnion_cuda.user_cache import cache_folder

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_USAGE = re.compile(r"Function (?P<name>[^:\s]+):\s*REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+)")
_MMA = re.compile(r"\b(?P<name>(?:HMMA|IMMA|QMMA|OMMA|HGMMA|QGMMA|IGMMA|UTC[A-Z]*MMA)(?:\.[0-9]+)?)")
KINDS = {
    "mma.sync": re.compile(r"^(HMMA|IMMA|QMMA|OMMA)"),
    "wgmma": re.compile(r"^(HGMMA|QGMMA|IGMMA)"),
    "tcgen05.mma": re.compile(r"^UTC"),
}
"""Kinds of tensor core instructions by what they are called in machine code."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one kernel on one architecture."""

    registers: int
    """Per thread."""
    stack: int
    """Bytes per thread: spilled registers, or arrays that cannot lie in any."""
    shared: int
    """Bytes per program that are reserved in the binary; a launch may ask for more."""
    mma: tuple[str, ...]
    """Names of the tensor core instructions."""

    def has(self, kind: str) -> bool:
        """Whether there is an instruction of `kind`, one of KINDS."""
        return any(KINDS[kind].match(name) for name in self.mma)


def read(cubin: bytes) -> Usage:
    """Of a cubin that holds one kernel.

    Raises:
        ValueError: it holds none, or several.
    """
    digest = hashlib.sha256(cubin + Path(__file__).read_bytes()).hexdigest()
    kept = cache_folder() / "usage" / f"{digest}.json"
    if kept.is_file():
        content = json.loads(kept.read_text())
        return Usage(**{**content, "mma": tuple(content["mma"])})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        found = _USAGE.findall(_run("cuobjdump", "-res-usage", file.name))
        code = _run("nvdisasm", "-c", file.name)
    if len(found) != 1:
        raise ValueError(f"expected one kernel in the cubin, found {len(found)}")
    _, registers, stack, shared = found[0]
    usage = Usage(int(registers), int(stack), int(shared), tuple(sorted(set(_MMA.findall(code)))))
    kept.parent.mkdir(parents=True, exist_ok=True)
    partial = kept.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(usage)))
    partial.replace(kept)
    return usage


def _run(tool: str, *args: str) -> str:
    return subprocess.run((str(_TOOLS / tool), *args), check=True, capture_output=True, text=True).stdout
