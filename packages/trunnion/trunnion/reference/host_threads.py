"""How many threads of the host this process should compute with."""

from __future__ import annotations

import os
from pathlib import Path

import torch

VARIABLE = "OMP_NUM_THREADS"
_TOPOLOGY = Path("/sys/devices/system/cpu")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def default_threads() -> int:
    """OMP_NUM_THREADS if set, else `usable_cores`."""
    return _asked() or usable_cores()


def threads_of_rank(num_ranks: int) -> int:
    """For the calling thread, if ranks of one machine share its cores.

    Torch's number where OMP_NUM_THREADS is set, which torch has read; else at most an equal share of `usable_cores`,
    fewer where torch was told so.
    """
    given = torch.get_num_threads()
    return given if _asked() else min(given, max(1, usable_cores() // num_ranks))


def _asked() -> int:
    """OMP_NUM_THREADS; 0 where it is not set, or no number of threads."""
    text = os.environ.get(VARIABLE, "")
    return int(text) if text.isdigit() else 0


def usable_cores() -> int:
    """The physical cores this process may use, within its container's quota."""
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
