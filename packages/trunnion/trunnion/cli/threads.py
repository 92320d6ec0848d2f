"""What is said of more threads than there are cores."""

from __future__ import annotations


def excess(threads: int, processes: int, cores: int) -> str | None:
    """What to say of more threads than there are cores, None where there are enough."""
    if threads * processes <= cores:
        return None
    each = "" if processes == 1 else f" of each of {processes} processes"
    return (
        f"--threads {threads}{each} on {cores} usable cores: threads will wait for each other; choices: 1 ... {cores}"
    )
