"""The native experts against a loop over tokens in float64, with every set of kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from trunnion.ops.moe import experts_by_token
from trunnion.ops.registry import OPERATORS
from trunnion_cpu.kernels.native import native_kernels

pytestmark = pytest.mark.usefixtures("isa", "inference")
Check = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One shape; `only` are the experts that tokens may be sent to."""

    tokens: int = 7
    experts: int = 5
    top_k: int = 2
    hidden: int = 32
    inner: int = 24
    bias: bool = False
    limit: float | None = None
    only: tuple[int, ...] = ()


CASES = {
    "some": Case(),
    "no-tokens": Case(tokens=0),
    "one-token": Case(tokens=1, hidden=63, inner=5),
    "one-expert": Case(experts=1, top_k=1),
    "all-experts": Case(top_k=5),
    "experts-without-tokens": Case(experts=64, tokens=3, only=(1, 62, 63)),
    "many-tokens-to-one": Case(tokens=150, only=(2, 4)),
    "odd-sizes": Case(tokens=13, hidden=127, inner=65),
    "biases": Case(bias=True),
    "clamped": Case(bias=True, limit=0.5),
    "large": Case(tokens=64, experts=8, top_k=2, hidden=256, inner=192),
}


@pytest.mark.parametrize("name", CASES)
def test_experts(name: str, dtype: torch.dtype, check: Check, threads: int) -> None:
    case = CASES[name]
    x = torch.randn(case.tokens, case.hidden + 3).to(dtype)[:, : case.hidden]
    w13 = (torch.randn(case.experts, 2 * case.inner, case.hidden) / case.hidden**0.5).to(dtype)
    w2 = (torch.randn(case.experts, case.hidden, case.inner) / case.inner**0.5).to(dtype)
    biases = [torch.randn(weight.shape[:2]).to(dtype) if case.bias else None for weight in (w13, w2)]
    choices = torch.tensor(case.only or range(case.experts))
    picks = [choices[torch.randperm(len(choices))[: case.top_k]] for _ in range(case.tokens)]
    ids = torch.stack(picks) if picks else torch.empty(0, case.top_k, dtype=torch.int64)
    weights = torch.rand(case.tokens, case.top_k)
    found = torch.ops.trunnion_cpu.fused_experts(x, w13, w2, weights, ids, *biases, 1.7, case.limit)
    expected = torch.zeros(case.tokens, case.hidden, dtype=torch.float64)
    for token in range(case.tokens):
        for expert, weight in zip(ids[token].tolist(), weights[token].double(), strict=True):
            gate_up = w13[expert].double() @ x[token].double()
            if case.bias:
                gate_up += biases[0][expert].double()
            gate, up = gate_up.to(dtype).double().chunk(2)
            if case.limit is None:
                inner = torch.nn.functional.silu(gate) * up
            else:
                gate, up = gate.clamp(max=case.limit), up.clamp(-case.limit, case.limit)
                inner = (up + 1) * gate * torch.sigmoid(1.7 * gate)
            value = w2[expert].double() @ inner.to(dtype).double()
            if case.bias:
                value += biases[1][expert].double()
            expected[token] += weight * value.to(dtype).double()
    check(found, expected)


def test_what_does_not_fit_is_named() -> None:
    x, w13, w2 = torch.ones(2, 8), torch.ones(3, 12, 8), torch.ones(3, 8, 6)
    weights = torch.ones(2, 1)
    with pytest.raises(RuntimeError, match="expert 3 of 3"):
        torch.ops.trunnion_cpu.fused_experts(x, w13, w2, weights, torch.tensor([[0], [3]]))
    with pytest.raises(RuntimeError, match="do not fit together"):
        torch.ops.trunnion_cpu.fused_experts(x, w13, w2.mT.contiguous(), weights, torch.tensor([[0], [1]]))


def test_experts_in_float16_are_counted_as_declined() -> None:
    x, w13, w2 = torch.randn(2, 8).half(), torch.randn(3, 12, 8).half(), torch.randn(3, 8, 6).half()
    routing = torch.ones(2, 1), torch.tensor([[0], [2]])
    OPERATORS.reset_declined()
    found = native_kernels()["fused_experts"](x, w13, w2, *routing)
    torch.testing.assert_close(found, experts_by_token(x, w13, w2, *routing))
    assert OPERATORS.declined() == {("fused_experts", "torch.float16 is neither float32 nor bfloat16"): 1}
    OPERATORS.reset_declined()
