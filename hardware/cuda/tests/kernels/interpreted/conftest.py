"""Puts the interpreter's conversions right, and gives tests seeded tensors, outputs of NaN and counts of nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import torch
from cuda_simulator import triton_numerics

from trunnion.ops import registry
from trunnion_cuda.kernels.tuning import Config, Space


@pytest.fixture(scope="session", autouse=True)
def exact_conversions() -> None:
    """The simulator's: the interpreter has faults."""
    triton_numerics.install()


@pytest.fixture(autouse=True)
def outputs_start_as_nan(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`torch.empty` holds NaN (integers: their least value), so that an element nobody writes shows."""
    empty = torch.empty

    def poisoned(*args: object, **kwargs: object) -> torch.Tensor:
        made = empty(*args, **kwargs)
        if made.dtype == torch.float8_e4m3fn:
            made.view(torch.uint8).fill_(0x7F)
        elif made.is_floating_point():
            made.fill_(float("nan"))
        elif made.dtype != torch.bool:
            made.fill_(torch.iinfo(made.dtype).min)
        return made

    monkeypatch.setattr(torch, "empty", poisoned)
    yield


@pytest.fixture(autouse=True)
def nothing_has_declined() -> None:
    """Calls that went to a reference are counted of one test."""
    registry.OPERATORS.reset_declined()


@pytest.fixture
def force_configuration(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`force_configuration(module, config, name="SPACE")`: the module's kernel runs with it, whether it fits or not."""

    class Forced(Space):
        def fitting(self, fits: Callable[[Config], bool] | None = None) -> tuple[Config, ...]:
            return self.configs

    def force(module: ModuleType, config: Config, name: str = "SPACE") -> None:
        monkeypatch.setattr(module, name, Forced("forced", (config,)))

    return force


@pytest.fixture
def randn() -> Callable[..., torch.Tensor]:
    """`randn(*shape, dtype=float32)`: the same numbers in every run."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return make
