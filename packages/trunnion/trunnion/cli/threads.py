"""How many threads a CPU should compute with."""

from __future__ import annotations

import os
from pathlib import Path

_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """OMP_NUM_THREADS if set, else `usable_cores`."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else usable_cores()


def usable_cores() -> int:
    """The physical cores this process may use, within its container's quota."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = physical_cores(allowed, _TOPOLOGY)
    quota = cpu_quota(_QUOTA)
    return max(1, min(cores, quota) if quota is not None else cores)


def excess(threads: int, processes: int, cores: int) -> str | None:
    """What to say of more threads than there are cores, None where there are enough."""
    if threads * processes <= cores:
        return None
    each = "" if processes == 1 else f" of each of {processes} processes"
    return (
        f"--threads {threads}{each} on {cores} usable cores: threads will wait for each other; choices: 1 ... {cores}"
    )


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
