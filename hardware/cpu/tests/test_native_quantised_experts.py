"""The native experts of quantised weights against a loop over tokens, with every set of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from trunnion.ops.grouped_int import dequantise_groups
from trunnion.ops.registry import OPERATORS
from trunnion_cpu.kernels.native import native_kernels

pytestmark = pytest.mark.usefixtures("isa", "inference")
Check = Callable[[torch.Tensor, torch.Tensor], None]
CASES = {
    "some": (7, 5, 2, (0, 1, 2, 3, 4)),
    "no-tokens": (0, 5, 2, (0, 1)),
    "one-token": (1, 5, 2, (1, 4)),
    "experts-without-tokens": (3, 40, 2, (1, 38, 39)),
    "many-tokens-to-some": (150, 5, 2, (2, 3, 4)),
}
"""Name -> tokens, experts, experts of a token, experts that tokens may be sent to."""


def operators() -> Any:
    return torch.ops.trunnion_cpu


def routed(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    tokens, _, top_k, only = CASES[name]
    picks = [torch.tensor(only)[torch.randperm(len(only))[:top_k]] for _ in range(tokens)]
    ids = torch.stack(picks) if picks else torch.empty(0, top_k, dtype=torch.int64)
    return torch.rand(tokens, top_k), ids


def by_token(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate_up: Callable[[int, torch.Tensor], torch.Tensor],
    down: Callable[[int, torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """In float64, with what is between the products rounded to x's dtype."""
    expected = torch.zeros(x.shape, dtype=torch.float64)
    for token in range(len(x)):
        for expert, weight in zip(ids[token].tolist(), weights[token].double(), strict=True):
            gate, up = gate_up(expert, x[token : token + 1]).double().chunk(2, -1)
            expected[token] += weight * down(expert, (F.silu(gate) * up).to(x.dtype))[0].double()
    return expected


@pytest.mark.parametrize("name", CASES)
def test_w8a8_experts(name: str, dtype: torch.dtype, check: Check, threads: int) -> None:
    tokens, experts, _, _ = CASES[name]
    hidden, inner = 72, 29
    x = torch.randn(tokens, hidden + 3).to(dtype)[:, :hidden]
    w13, w2 = (
        torch.randint(-128, 128, size, dtype=torch.int8)
        for size in ((experts, 2 * inner, hidden), (experts, hidden, inner))
    )
    s13, s2 = torch.rand(experts, 2 * inner) * 0.002 + 0.0005, torch.rand(experts, hidden) * 0.002 + 0.0005
    weights, ids = routed(name)
    found = operators().w8a8_experts(x, w13, s13, w2, s2, weights, ids)

    def gate_up(expert: int, row: torch.Tensor) -> torch.Tensor:
        return operators().w8a8_linear(row, w13[expert], s13[expert], None, None)

    def down(expert: int, row: torch.Tensor) -> torch.Tensor:
        return operators().w8a8_linear(row, w2[expert], s2[expert], None, None)

    expected = by_token(x, weights, ids, gate_up, down)
    # A value between the products that is rounded otherwise moves one by a step of 1 / 127.
    assert found.dtype == dtype and found.shape == x.shape
    assert (found.double() - expected).norm() <= (0.01 if dtype == torch.bfloat16 else 1e-3) * expected.norm()


@pytest.mark.parametrize("has_zeros", [False, True], ids=["symmetric", "zero-points"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", CASES)
def test_grouped_experts(name: str, bits: int, has_zeros: bool, dtype: torch.dtype, check: Check, threads: int) -> None:
    tokens, experts, _, _ = CASES[name]
    hidden, inner, group = 96, 40, 64
    x = torch.randn(tokens, hidden + 3).to(dtype)[:, :hidden]

    def made(features: int, size: int, group: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        groups = -(-size // group)
        zeros = torch.randint(0, 2**bits, (experts, features, groups), dtype=torch.uint8) if has_zeros else None
        scales = ((torch.rand(experts, features, groups) + 0.1) * 2.0**-bits / size**0.5).to(dtype)
        return torch.randint(0, 256, (experts, features, size * bits // 8), dtype=torch.uint8), scales, zeros

    up, low = made(2 * inner, hidden, group), made(hidden, inner, inner)
    weights, ids = routed(name)
    found = operators().grouped_int_experts(x, *up, *low, weights, ids, bits, group, inner)

    def product(stack: Any, size: int) -> Callable[[int, torch.Tensor], torch.Tensor]:
        def apply(expert: int, row: torch.Tensor) -> torch.Tensor:
            parts = [None if part is None else part[expert] for part in stack]
            return (row.double() @ dequantise_groups(*parts, bits, size).double().T).to(dtype)

        return apply

    check(found, by_token(x, weights, ids, product(up, group), product(low, inner)))


def test_what_does_not_fit_is_named() -> None:
    x, weights, ids = torch.ones(2, 64), torch.ones(2, 1), torch.tensor([[0], [1]])
    w13, w2 = torch.ones(3, 12, 64, dtype=torch.int8), torch.ones(3, 64, 6, dtype=torch.int8)
    with pytest.raises(RuntimeError, match="expert 3 of 3"):
        operators().w8a8_experts(x, w13, torch.ones(3, 12), w2, torch.ones(3, 64), weights, ids + 2)
    with pytest.raises(RuntimeError, match="do not fit together"):
        operators().w8a8_experts(x[:, :8], w13, torch.ones(3, 12), w2, torch.ones(3, 64), weights, ids)
    with pytest.raises(RuntimeError, match="scales of w13 are not 3 by 12"):
        operators().w8a8_experts(x, w13, torch.ones(3, 11), w2, torch.ones(3, 64), weights, ids)
    packed = torch.ones(3, 12, 32, dtype=torch.uint8), torch.ones(3, 12, 2), None
    low = torch.ones(3, 64, 3, dtype=torch.uint8), torch.ones(3, 64, 1), None
    with pytest.raises(RuntimeError, match="groups of 24 features"):
        operators().grouped_int_experts(x, *packed, *low, weights, ids, 4, 24, 6)


def test_experts_in_float8_are_declined_and_counted() -> None:
    weights = [torch.ones(size).to(torch.float8_e4m3fn) for size in ((2, 12, 64), (2, 64, 6))]
    OPERATORS.reset_declined()
    routing = torch.ones(2, 1), torch.tensor([[0], [1]])
    x, scales = torch.randn(2, 64), (torch.ones(2, 12), torch.ones(2, 64))
    native_kernels()["w8a8_experts"](x, weights[0], scales[0], weights[1], scales[1], *routing)
    assert OPERATORS.declined() == {("w8a8_experts", "weights in torch.float8_e4m3fn"): 1}
    OPERATORS.reset_declined()
