"""Launches Triton kernels, or records the launches so that they can be compiled where there is no device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from trunnion_cuda import ahead

SM80, SM90A, SM100A, SM120A = "sm_80", "sm_90a", "sm_100a", "sm_120a"
EVERY_ARCHITECTURE = (SM80, SM90A, SM100A, SM120A)
"""Ampere, Hopper, Blackwell for data centres, Blackwell for workstations."""
WITH_FP8 = (SM90A, SM100A, SM120A)
"""Those whose tensor cores and conversions know e4m3."""
FLOAT8_CAPABILITY = (8, 9)
"""Compute capability from which there are any."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: a Triton kernel, its grid, its arguments, its constants and options."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constants: Mapping[str, Any]


_RECORDED: ContextVar[list[Launch] | None] = ContextVar("recorded_launches", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Run `kernel[grid](*args, **constants)`, by a cubin of this wheel if it has one; an empty grid is no launch."""
    if 0 in grid:
        return
    recorded = _RECORDED.get()
    if recorded is not None:
        recorded.append(Launch(kernel, grid, args, constants))
        return
    cubins = ahead.installed()
    if cubins is None or not cubins.launch(kernel, grid, args, constants):
        kernel[grid](*args, **constants)


@contextmanager
def recorded_launches() -> Iterator[list[Launch]]:
    """Within this context kernels are not run: their launches are collected, their outputs hold anything."""
    launches: list[Launch] = []
    token = _RECORDED.set(launches)
    try:
        yield launches
    finally:
        _RECORDED.reset(token)


def ceil_div(a: int, b: int) -> int:
    """Of non-negative a and positive b."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The least power of two that is at least `n`: Triton's blocks have no other lengths."""
    return 1 << max(n - 1, 0).bit_length()
