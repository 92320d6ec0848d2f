"""TileLang's kernels beside Triton's: compiled while tuning only, checked before one may run, and what calls ran on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from trunnion_cuda import environment
from trunnion_cuda.ahead.cubins import ARCHITECTURES as ARCHITECTURE_OF
from trunnion_cuda.kernels.launch import SM80
from trunnion_cuda.kernels.tuning import CannotRunError, Key

TILELANG, TRITON = "TileLang", "Triton"
LARGEST_DIFFERENCE = 0.01
"""Of two implementations' results, as a part of their size: each is rounded to bfloat16, by at most 2 ** -8."""
Kernel = Callable[..., None]


def why_not_here(architectures: Sequence[str]) -> str | None:
    """Why this process has no kernels of TileLang that are written for these architectures, or None."""
    if (reason := environment.why_no_tilelang()) is not None:
        return reason
    capability = torch.cuda.get_device_capability()
    found = SM80 if capability[0] == 8 else ARCHITECTURE_OF.get(capability)
    if found in architectures:
        return None
    return f"compute capability {'.'.join(map(str, capability))}; it is written for {', '.join(architectures)}"


class TileKernels:
    """The compiled kernels of one operator in a process, and what its calls ran on.

    Args:
        operator: how reports call it.
        calls: how reports call what it is given, in the plural.
        why_not: why there are none here, or None.
    """

    def __init__(self, operator: str, calls: str, why_not: str | None) -> None:
        self.why_not = why_not
        self._operator, self._calls = operator, calls
        self._kernels: dict[Any, Kernel] = {}
        self._ran: dict[Key, str] = {}

    def __contains__(self, key: object) -> bool:
        """Whether the kernel is there, compiled and checked."""
        return key in self._kernels

    def kernel(self, key: object, compile: Callable[[], Kernel], difference: Callable[[Kernel], float]) -> Kernel:
        """The kernel of `key`; a new one is compiled, and must not differ by more than `LARGEST_DIFFERENCE`.

        `difference` is from Triton's result, which a launch that went to another stream, or nowhere, does not have.

        Raises:
            CannotRunError: the kernel cannot be compiled or launched, or it computes something else; from then on there
                are none.
        """
        if key not in self._kernels:
            kernel, found = self._made(compile, difference)
            # NaN is a difference.
            if not found <= LARGEST_DIFFERENCE:
                self.why_not = f"its result differs from {TRITON}'s by {found:.2g}, {LARGEST_DIFFERENCE} is allowed"
                raise CannotRunError(self.why_not)
            self._kernels[key] = kernel
        return self._kernels[key]

    def note(self, kind: Key, implementation: str) -> None:
        """Remember what a kind of call ran on: the last one counts."""
        self._ran[kind] = implementation

    def report(self) -> Mapping[str, str]:
        """Implementation -> for how many kinds of calls it runs; empty if there were none."""
        if not self._ran:
            return {}
        counts = Counter(self._ran.values())
        found = {f"{self._operator} on {name}": f"{n} kinds of {self._calls}" for name, n in sorted(counts.items())}
        return found if self.why_not is None else {**found, f"{self._operator} on {TILELANG}": f"never: {self.why_not}"}

    def _made(self, compile: Callable[[], Kernel], difference: Callable[[Kernel], float]) -> tuple[Kernel, float]:
        if self.why_not is None:
            try:
                kernel = compile()
                return kernel, difference(kernel)
            # Compilers and launchers raise what they like; calls have another implementation, and the report says why.
            except Exception as error:
                self.why_not = f"not compiled, or not launched: {type(error).__name__}: {error}".splitlines()[0][:200]
        raise CannotRunError(self.why_not)
