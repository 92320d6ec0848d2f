"""Weights of 4 and 8 bits in the interpreter against the reference: odd sizes, short last groups, no zero points;
linear layers and experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from trunnion.ops import registry
from trunnion_cuda.kernels import grouped_int_experts, grouped_int_linear
from trunnion_cuda.kernels.tuning import Config

REFERENCE = registry.OPERATORS.reference
Randn = Callable[..., torch.Tensor]
Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor | None, int, int]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def operands(
    randn: Randn, size: tuple[int, int, int], bits: int, group: int, *, dtype: torch.dtype, zeros: bool = True
) -> Arguments:
    """Of tokens, columns and features; no two groups have scales or zero points alike."""
    rows, columns, depth = size
    groups = -(-depth // group)
    weight = torch.randint(0, 256, (columns, depth * bits // 8)).to(torch.uint8)
    scales = (randn(columns, groups).abs() + 0.1).to(dtype) * 2.0 ** (-bits)
    zero_points = torch.randint(0, 2**bits, (columns, groups)).to(torch.uint8) if zeros else None
    return randn(rows, depth, dtype=dtype), weight, scales, zero_points, randn(columns, dtype=dtype), bits, group


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "symmetric"])
@pytest.mark.parametrize(
    ("size", "bits", "group"),
    [
        ((1, 5, 64), 4, 32), ((17, 70, 160), 4, 32), ((3, 16, 152), 4, 128), ((33, 24, 88), 4, 88),
        ((5, 40, 256), 8, 64), ((2, 33, 100), 8, 100), ((0, 8, 64), 4, 32), ((4, 8, 192), 4, 96),
    ],
    ids=str,
)  # fmt: skip
def test_products_are_the_references(
    randn: Randn, size: tuple[int, int, int], bits: int, group: int, zeros: bool, dtype: torch.dtype
) -> None:
    args = operands(randn, size, bits, group, dtype=dtype, zeros=zeros)
    got = grouped_int_linear.grouped_int_linear(*args)
    wanted = REFERENCE("grouped_int_linear")(*args)
    scale = max(float(wanted.float().abs().max()), 1.0) if wanted.numel() else 1.0
    torch.testing.assert_close(got, wanted, rtol=0, atol=scale * (1e-5 if dtype == torch.float32 else 1e-2))
    assert not registry.declined()


def test_leading_dimensions_and_strided_rows(randn: Randn) -> None:
    args = operands(randn, (12, 40, 64), 4, 32, dtype=torch.float32)
    x = torch.zeros(2, 6, 100)
    x[..., :64] = args[0].view(2, 6, 64)
    got = grouped_int_linear.grouped_int_linear(x[..., :64], *args[1:4], None, *args[5:])
    wanted = REFERENCE("grouped_int_linear")(*args[:4], None, *args[5:])
    torch.testing.assert_close(got, wanted.view(2, 6, 40), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("config", grouped_int_linear.SPACE.configs, ids=str)
def test_every_configuration(randn: Randn, config: Config, force_configuration: Callable[..., None]) -> None:
    force_configuration(grouped_int_linear, config)
    args = operands(randn, (70, 140, 152), 4, 64, dtype=torch.float32)
    wanted = REFERENCE("grouped_int_linear")(*args)
    torch.testing.assert_close(grouped_int_linear.grouped_int_linear(*args), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda args: (args[0].t().contiguous().t(), *args[1:]), "features that are not neighbours"),
        (lambda args: (*args[:2], args[2].half(), *args[3:]), "scales in torch.float16 for values in torch.float32"),
        (lambda args: (args[0], args[1].t().contiguous().t(), *args[2:]), "strided weights"),
    ],
    ids=["columns", "scales", "weights"],
)
def test_what_it_cannot_take_it_declines(randn: Randn, change: Callable[[Arguments], Arguments], reason: str) -> None:
    args = change(operands(randn, (4, 8, 64), 4, 32, dtype=torch.float32))
    wanted = REFERENCE("grouped_int_linear")(*args)
    assert torch.equal(grouped_int_linear.grouped_int_linear(*args), wanted)
    assert registry.declined() == {("grouped_int_linear", reason): 1}


def experts(
    randn: Randn, num_tokens: int, bits: int, groups: tuple[int, int], *, dtype: torch.dtype, zeros: bool
) -> list[Any]:
    """Four experts of 96 hidden and 72 intermediate features; the last of them gets no token."""
    made: list[Any] = []
    for (rows, depth), group in zip(((144, 96), (96, 72)), groups, strict=True):
        size = 4, rows, -(-depth // group)
        made.append(torch.randint(0, 256, (4, rows, depth * bits // 8)).to(torch.uint8))
        made.append((randn(*size).abs() + 0.1).to(dtype) * 2.0 ** (-bits))
        made.append(torch.randint(0, 2**bits, size).to(torch.uint8) if zeros else None)
    ids = torch.rand(num_tokens, 3).argsort(-1)[:, :2].contiguous()
    return [randn(num_tokens, 96, dtype=dtype) * 0.3, *made, torch.rand(num_tokens, 2), ids, bits, *groups]


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    largest = float(wanted.float().abs().max()) if wanted.numel() else 1.0
    torch.testing.assert_close(got, wanted, rtol=0, atol=largest * (1e-5 if got.dtype == torch.float32 else 2e-2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("zeros", [True, False], ids=["zeros", "symmetric"])
@pytest.mark.parametrize(("bits", "groups"), [(4, (32, 64)), (4, (96, 72)), (8, (64, 32))], ids=str)
@pytest.mark.parametrize("num_tokens", [0, 1, 19])
def test_experts_are_the_references(
    randn: Randn, num_tokens: int, bits: int, groups: tuple[int, int], zeros: bool, dtype: torch.dtype
) -> None:
    args = experts(randn, num_tokens, bits, groups, dtype=dtype, zeros=zeros)
    assert_near(grouped_int_experts.grouped_int_experts(*args), REFERENCE("grouped_int_experts")(*args))
    assert not registry.declined()


@pytest.mark.parametrize("config", grouped_int_experts.SPACE.configs, ids=str)
def test_every_configuration_of_experts(randn: Randn, config: Config, force_configuration: Callable[..., None]) -> None:
    force_configuration(grouped_int_experts, config)
    args = experts(randn, 40, 4, (32, 64), dtype=torch.float32, zeros=True)
    assert_near(grouped_int_experts.grouped_int_experts(*args), REFERENCE("grouped_int_experts")(*args))


def test_experts_that_it_cannot_take_it_declines(randn: Randn) -> None:
    args = experts(randn, 5, 4, (32, 64), dtype=torch.float32, zeros=True)
    args[8] = args[8].int()
    wanted = REFERENCE("grouped_int_experts")(*args)
    assert torch.equal(grouped_int_experts.grouped_int_experts(*args), wanted)
    reason = "routing in torch.float32 and torch.int32"
    assert registry.declined() == {("grouped_int_experts", reason): 1}
