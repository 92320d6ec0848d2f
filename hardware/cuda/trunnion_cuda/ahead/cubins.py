"""The cubins of a wheel: found by signature and architecture, launched by the driver, and what they lack counted."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trunnion_cuda.ahead.driver import C_TYPES, Driver
from trunnion_cuda.ahead.signature import ANY, ONE, Signature, signature_of

INDEX = "index.json"
SOURCES = Path(__file__).resolve().parent.parent / "kernels"
ARCHITECTURES = {(9, 0): "sm_90a", (10, 0): "sm_100a", (12, 0): "sm_120a"}
"""Compute capability -> the only architecture whose cubins it runs; those of sm_80 run on every 8.x."""
SCRATCH = 2
"""Pointers that Triton appends to a kernel's parameters: memory of the grid and of its profiler, here never used."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One compiled kernel of the index."""

    signature: Signature
    architecture: str
    file: str
    name: str
    """Of the kernel in the cubin."""
    num_warps: int
    shared: int
    """Bytes that a launch asks for."""


class StaleCubinsError(RuntimeError):
    """The cubins were compiled from other kernels than those that are installed."""


class Cubins:
    """Compiled kernels for one architecture.

    Args:
        folder: what `python -m trunnion_cuda.ahead` wrote.
        architecture: of the device; None has no cubins.
        shared: bytes of shared memory that a program may have on the device.
        stream: the handle of the stream to launch on, asked for every launch.

    Raises:
        StaleCubinsError: the kernels' sources have changed since.
    """

    def __init__(
        self, folder: Path, driver: Driver, architecture: str | None, shared: int, stream: Callable[[], int]
    ) -> None:
        index = json.loads((folder / INDEX).read_text())
        if index["sources"] != sources_digest():
            raise StaleCubinsError(f"{folder} was compiled from other kernels than {SOURCES} holds; build it again")
        self._folder, self._driver, self._stream = folder, driver, stream
        self._entries: dict[tuple[Any, ...], list[Entry]] = {}
        self._functions: dict[str, int] = {}
        for row in index["entries"]:
            entry = Entry(**{**row, "signature": Signature.from_json(row["signature"])})
            if entry.architecture == architecture and entry.shared <= shared:
                self._entries.setdefault(entry.signature.family, []).append(entry)
        for entries in self._entries.values():
            entries.sort(key=lambda entry: entry.signature.known.count(ANY))
        self.architecture = architecture
        self.launched: Counter[str] = Counter()
        """Kernel -> launches of its cubins."""
        self.compiled: dict[Signature, int] = {}
        """Signatures without a cubin -> launches that Triton was asked for."""

    @classmethod
    def of_device(cls, folder: Path) -> Cubins:
        """For torch's current device."""
        capability = torch.cuda.get_device_capability()
        architecture = "sm_80" if capability[0] == 8 else ARCHITECTURES.get(capability)
        shared = torch.cuda.get_device_properties().shared_memory_per_block_optin
        return cls(folder, Driver(), architecture, shared, lambda: torch.cuda.current_stream().cuda_stream)

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def find(self, signature: Signature) -> Entry | None:
        """The cubin for a launch that takes most for granted, or None."""
        found = self._entries.get(signature.family, ())
        return next((entry for entry in found if entry.signature.covers(signature)), None)

    def launch(self, kernel: Any, grid: Sequence[int], args: Sequence[Any], constants: Mapping[str, Any]) -> bool:
        """Launch a cubin; False if there is none, which is counted: Triton is to compile it."""
        signature = signature_of(kernel, args, constants)
        entry = self.find(signature)
        if entry is None:
            self.compiled[signature] = self.compiled.get(signature, 0) + 1
            return False
        if entry.file not in self._functions:
            image = (self._folder / entry.file).read_bytes()
            self._functions[entry.file] = self._driver.load(image, entry.name, entry.shared)
        params = params_of(entry.signature, args)
        function = self._functions[entry.file]
        self._driver.launch(function, grid, entry.num_warps, entry.shared, self._stream(), params)
        self.launched[signature.kernel] += 1
        return True

    def report(self) -> dict[str, str]:
        """Kernel -> why Triton compiles it in spite of the cubins."""
        counts = Counter(signature.kernel.rpartition(":")[2].strip("_") for signature in self.compiled)
        where = self.architecture or "this device"
        return {name: f"no cubin for {count} of its launches on {where}" for name, count in counts.items()}

    def write_missing(self, path: Path) -> None:
        """Write what has no cubin, for `python -m trunnion_cuda.ahead --launches`."""
        rows = [{"signature": each.as_json(), "architecture": self.architecture} for each in self.compiled]
        path.write_text(json.dumps(rows, indent=1))


def contents(folder: Path) -> Counter[str]:
    """Architecture -> kernels in a folder of cubins."""
    return Counter(row["architecture"] for row in json.loads((folder / INDEX).read_text())["entries"])


def params_of(signature: Signature, args: Sequence[Any]) -> list[Any]:
    """The parameters of a kernel that was compiled for `signature`: without those whose value it knows."""
    params: list[Any] = []
    for arg, type, known in zip(args, signature.types, signature.known, strict=True):
        if known != ONE:
            params.append(ctypes.c_void_p(arg.data_ptr()) if type.startswith("*") else C_TYPES[type](arg))
    return params + [ctypes.c_void_p(None) for _ in range(SCRATCH)]


def sources_digest() -> str:
    """Of the kernels that cubins are compiled from."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
