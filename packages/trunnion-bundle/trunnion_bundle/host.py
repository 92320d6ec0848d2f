"""What this machine is: its processor's flags, and the names of platforms for it."""

from __future__ import annotations

import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def machine() -> str:
    """`x86_64`, `aarch64`, ..."""
    return platform.machine()


def processor_flags() -> frozenset[str]:
    """Flags of the processor by their names in /proc/cpuinfo; none where there is no such file."""
    if not CPUINFO.is_file():
        return frozenset()
    for line in CPUINFO.read_text().splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(words.split())
    return frozenset()
