"""What tests of native operators share: every set of kernels in turn, and comparison with float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from trunnion_cpu.native import Native, native

FOUND = native()
ISAS = FOUND.isas if isinstance(FOUND, Native) else ()
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}
Check = Callable[[torch.Tensor, torch.Tensor], None]


@pytest.fixture(params=ISAS or ["none"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each set of kernels in turn; the process's own afterwards."""
    if not isinstance(FOUND, Native):
        pytest.skip(f"no native operators: {FOUND.reason}")
    before = FOUND.isa
    FOUND.choose(request.param)
    assert FOUND.isa == request.param
    yield request.param
    FOUND.choose(before)


@pytest.fixture(params=[1, 3], ids=["1-thread", "3-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """More threads than cores, too, on a small machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def inference() -> Iterator[None]:
    """As in an executor, with the same numbers each time."""
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


@pytest.fixture(params=list(TOLERANCE), ids=lambda dtype: str(dtype).removeprefix("torch."))
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def check(dtype: torch.dtype) -> Check:
    """Compares: the first is dense, of `dtype`, and close to the second, which is float64."""

    def compare(found: torch.Tensor, expected: torch.Tensor) -> None:
        assert found.dtype == dtype
        assert found.is_contiguous()
        torch.testing.assert_close(found.double(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])

    return compare
