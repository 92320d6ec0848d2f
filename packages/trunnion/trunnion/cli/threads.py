"""How many threads a CPU should compute with."""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """OMP_NUM_THREADS if set, else the physical cores this process may use, within its container's quota."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = physical_cores(allowed, _TOPOLOGY)
    quota = cpu_quota(_QUOTA)
    return max(1, min(cores, quota) if quota is not None else cores)


def physical_cores(allowed: set[int], topology: Path) -> int:
    """Cores behind the logical CPUs `allowed`; CPUs whose siblings are unknown count as cores."""
    cores = set()
    for cpu in allowed:
        siblings = topology / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    return len(cores)


def cpu_quota(path: Path) -> int | None:
    """Whole CPUs that a cgroup's `cpu.max` grants, None for no limit."""
    if not path.is_file():
        return None
    quota, _, period = path.read_text().partition(" ")
    return None if quota == "max" else max(1, int(quota) // int(period))
