"""Threads of the native operators: callers at the same time, counts that change, more threads than cores."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F

pytestmark = pytest.mark.usefixtures("isa", "inference")


def _products(seed: int) -> bool:
    """Whether many products in a row are right, with as many threads as this one asks for."""
    generator = torch.Generator().manual_seed(seed)
    x, weight = torch.randn(3, 64, generator=generator), torch.randn(600, 64, generator=generator)
    expected = F.linear(x.double(), weight.double())
    with torch.inference_mode():
        return all(
            torch.allclose(torch.ops.trunnion_cpu.linear(x, weight, None).double(), expected, rtol=1e-4, atol=1e-4)
            for _ in range(300)
        )


def test_counts_that_change() -> None:
    """Threads that a larger count started stay out of calls with a smaller one, and come back."""
    before = torch.get_num_threads()
    try:
        for count in (1, 4, 2, 7, 1, 3):
            torch.set_num_threads(count)
            assert _products(count)
    finally:
        torch.set_num_threads(before)


def test_callers_at_the_same_time() -> None:
    """One has the others' help, the rest work alone; none sees another's operands."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(3, initializer=torch.set_num_threads, initargs=(3,)) as pool:
            assert all(pool.map(_products, range(3)))
    finally:
        torch.set_num_threads(before)
