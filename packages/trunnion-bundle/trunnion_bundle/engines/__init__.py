"""Engines of the Python runner: one file each, which imports its framework when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trunnion_bundle.contract import Bundle
from trunnion_bundle.engines import aoti, pjrt, sim
from trunnion_bundle.errors import BundleError
from trunnion_bundle.requests import Array


class Engine(Protocol):
    """Computes the modules of a bundle on one platform."""

    def run(self, module: str, inputs: Sequence[Array]) -> Sequence[Array]:
        """The outputs of `module`, in order. `inputs` are contiguous, checked, and have an allowed size."""


Open = Callable[[Path, Bundle, Any], Engine]
_OPEN: Mapping[str, Open] = {"aoti": aoti.open_engine, "pjrt": pjrt.open_engine, "sim": sim.open_engine}
_REFUSAL: Mapping[str, Callable[[Any], str]] = {"aoti": aoti.refusal, "pjrt": pjrt.refusal, "sim": sim.refusal}


def choose(bundle: Bundle, platform: str | None) -> str:
    """The platform to run on: `platform`, or the best that this machine can run.

    Raises:
        BundleError: there is none, with the reason of each.
    """
    if platform is not None and platform not in bundle.lowerings:
        raise BundleError(f"no lowering for {platform!r}; the bundle has: {', '.join(bundle.lowerings)}")
    names = [platform] if platform else sorted(bundle.lowerings, key=lambda name: _rank(bundle, name))
    reasons = {name: _REFUSAL[bundle.lowerings[name].engine](bundle.lowerings[name]) for name in names}
    for name, reason in reasons.items():
        if not reason:
            return name
    raise BundleError("no lowering runs here: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))


def _rank(bundle: Bundle, name: str) -> tuple[int, int, str]:
    """cuda, npu, cpu with the most instructions, executables, StableHLO, sim."""
    order = ("cuda", "npu", "cpu", "pjrt", "stablehlo", "sim")
    lowering = bundle.lowerings[name]
    return order.index(name.partition("-")[0]), -len(getattr(lowering, "isa", ())), name


def open_engine(folder: Path, bundle: Bundle, platform: str) -> Engine:
    """Open the lowering of `platform`."""
    lowering = bundle.lowerings[platform]
    return _OPEN[lowering.engine](folder, bundle, lowering)
