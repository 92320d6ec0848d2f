"""How kernels are launched on vector cores: a program takes every n-th task, so that there are no more than cores."""

from __future__ import annotations

VECTOR_CORES = 40
"""Of Ascend910B3, two beside each cube; a launch of more programs runs them in turns."""


def grid(num_tasks: int) -> tuple[int]:
    """Programs for so many tasks, at least one."""
    return (max(min(num_tasks, VECTOR_CORES), 1),)


def power_of_two(size: int) -> int:
    """The least power of two that is not below `size`."""
    return 1 << max(size - 1, 0).bit_length()
