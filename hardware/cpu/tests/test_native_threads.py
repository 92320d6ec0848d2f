"""Threads of the native operators: callers at the same time, counts that change, more threads than cores."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from trunnion_cpu.native import Native, native

FOUND = native()
HERE = Path(__file__).resolve().parent
by_isa = pytest.mark.usefixtures("isa", "inference")


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


@by_isa
def test_counts_that_change() -> None:
    """Threads that a larger count started stay out of calls with a smaller one, and come back."""
    before = torch.get_num_threads()
    try:
        for count in (1, 4, 2, 7, 1, 3):
            torch.set_num_threads(count)
            assert _products(count)
    finally:
        torch.set_num_threads(before)


@by_isa
def test_callers_at_the_same_time() -> None:
    """One has the others' help, the rest work alone; none sees another's operands."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with ThreadPoolExecutor(3, initializer=torch.set_num_threads, initargs=(3,)) as pool:
            assert all(pool.map(_products, range(3)))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("sanitizer", ["none", "thread"])
def test_the_pool_by_itself(sanitizer: str, tmp_path: Path) -> None:
    """Each item once, sleepers woken, callers at once and calls within calls; races are ThreadSanitizer's to see."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    program = tmp_path / "threads_test"
    sources = (HERE / "native" / "threads_test.cc", HERE.parent / "csrc" / "operators" / "threads.cc")
    flags = ("-std=c++20", "-O1", "-g", "-pthread", *(() if sanitizer == "none" else (f"-fsanitize={sanitizer}",)))
    subprocess.run((compiler, *flags, *map(str, sources), "-o", str(program)), check=True)
    done = subprocess.run((str(program),), capture_output=True, text=True, timeout=300, check=False)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("ThreadSanitizer cannot run on this kernel")
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stdout + done.stderr


@by_isa
def test_native_operators_alone() -> None:
    """Torch's operators have one thread meanwhile, and their own number again afterwards, also after an error."""
    assert isinstance(FOUND, Native)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(ValueError, match="within"), FOUND.alone():
            assert torch.get_num_threads() == 1
            assert _products(0)
            raise ValueError("within")
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@by_isa
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_copied_as_float32(dtype: torch.dtype, threads: int) -> None:
    for rows, size in ((0, 4), (1, 1), (3, 7), (2, 16384), (5, 40001)):
        given = torch.randn(rows, size + 3).to(dtype)[:, :size]
        out = torch.full((rows, size), float("nan"))
        torch.ops.trunnion_cpu.copy_rows(given, out)
        assert torch.equal(out, given.float())
    with pytest.raises(RuntimeError, match="one shape"):
        torch.ops.trunnion_cpu.copy_rows(torch.ones(2, 3), torch.ones(3, 2))
