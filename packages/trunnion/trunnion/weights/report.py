"""What loading did: the account that is printed and returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class WeightReport:
    """Every checkpoint tensor is in `num_used`, `ignored`, `tied` or `known`; every parameter was filled once, is
    shared, or is a scalar that took its default."""

    source: str
    num_parameters: int
    num_used: int
    ignored: Mapping[str, tuple[str, ...]]
    """reason -> checkpoint tensors left out for it"""
    tied: tuple[str, ...]
    """Checkpoint tensors that repeat a shared parameter; compared with it and found equal."""
    conversions: Mapping[tuple[str, str], int]
    """(stored as, loaded as) -> number of tensors"""
    bytes_read: int
    bytes_loaded: int
    """Bytes of all parameters on this rank."""
    seconds: float
    shared: tuple[str, ...] = ()
    """Parameters of a draft that are its target's; not counted above."""
    known: tuple[str, ...] = ()
    """Checkpoint tensors that hold what the model knows without them; compared with that."""
    defaults: Mapping[str, float] = field(default_factory=dict)
    """Parameter that the checkpoint leaves out -> the value it took."""
    notes: tuple[str, ...] = ()
    """What else is to be known of the load, a line each."""

    def lines(self) -> list[str]:
        """The report for people, one fact per line."""
        mib = self.bytes_loaded / 2**20
        out = [
            f"weights: {self.num_used} tensors -> {self.num_parameters} parameters, {mib:.1f} MiB, "
            f"{self.seconds:.1f} s, from {self.source}"
        ]
        for (stored, loaded), count in sorted(self.conversions.items()):
            out.append(f"weights: {count} tensors stored as {stored}, loaded as {loaded}")
        for reason, names in sorted(self.ignored.items()):
            out.append(f"weights: {len(names)} tensors ignored ({reason}): {first_names(names)}")
        if self.tied:
            out.append(f"weights: {first_names(self.tied)} repeats a tied parameter (equal)")
        if self.known:
            out.append(f"weights: {len(self.known)} tensors hold what they must, not loaded: {first_names(self.known)}")
        for value in sorted(set(self.defaults.values())):
            names = tuple(name for name, default in self.defaults.items() if default == value)
            out.append(f"weights: {len(names)} scalars not in the checkpoint, taken as {value}: {first_names(names)}")
        if self.shared:
            out.append(f"weights: {len(self.shared)} parameters shared with the target: {first_names(self.shared)}")
        return [*out, *self.notes]


def first_names(names: tuple[str, ...] | list[str], limit: int = 10) -> str:
    """The first names and how many more there are."""
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
