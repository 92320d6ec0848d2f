"""Experts in the interpreter: routing with ties and NaN, blocks of one expert, the grouped GEMMs, the sum."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from trunnion.ops import registry
from trunnion_cuda.kernels import expert_blocks, moe, routing
from trunnion_cuda.kernels.tuning import Config

REFERENCE = registry.OPERATORS.reference
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-5}, torch.bfloat16: {"rtol": 3e-2, "atol": 2e-2}}
Randn = Callable[..., torch.Tensor]


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("num_tokens", "experts", "top_k"), [(1, 1, 1), (5, 7, 3), (3, 60, 8), (130, 4, 4), (0, 8, 2)])
def test_topk_softmax(
    randn: Randn, num_tokens: int, experts: int, top_k: int, dtype: torch.dtype, renormalize: bool
) -> None:
    # A permutation per row: bfloat16 would make ties of neighbours.
    order = torch.argsort(randn(num_tokens, experts), dim=-1)
    logits = (order * 0.25 - 3).to(dtype)
    got, want = (f(logits, top_k, renormalize) for f in (routing.topk_softmax, REFERENCE("topk_softmax")))
    torch.testing.assert_close(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize(
    ("experts", "groups", "top_groups", "top_k"), [(8, 4, 2, 3), (15, 3, 1, 5), (20, 1, 1, 2), (12, 6, 6, 4)]
)
def test_grouped_topk(randn: Randn, experts: int, groups: int, top_groups: int, top_k: int) -> None:
    args = randn(6, experts), top_k, groups, top_groups, True
    got, want = routing.grouped_topk(*args), REFERENCE("grouped_topk")(*args)
    torch.testing.assert_close(got[0], want[0])
    assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    ("num_tokens", "experts", "groups", "top_groups", "top_k"),
    [(6, 8, 4, 2, 3), (5, 15, 3, 1, 5), (1, 20, 1, 1, 2), (130, 12, 6, 6, 4), (0, 8, 2, 1, 2)],
)
def test_biased_grouped_topk(
    randn: Randn, num_tokens: int, experts: int, groups: int, top_groups: int, top_k: int, renormalize: bool
) -> None:
    # Sums of score and bias lie on both sides of 0.
    args = randn(num_tokens, experts), randn(experts), top_k, groups, top_groups, renormalize
    got, want = routing.biased_grouped_topk(*args), REFERENCE("biased_grouped_topk")(*args)
    torch.testing.assert_close(got[0], want[0])
    assert torch.equal(got[1], want[1])


def test_sigmoids_that_are_all_zero_are_not_divided_by_zero() -> None:
    logits, bias = torch.full((1, 4), -200.0), torch.zeros(4)
    weights, ids = routing.biased_grouped_topk(logits, bias, 2, 1, 1, True)
    assert weights.tolist() == [[0.0, 0.0]] and ids.tolist() == [[0, 1]]


def test_a_row_of_nan_names_experts_of_groups_that_exist(randn: Randn) -> None:
    logits = randn(2, 8)
    logits[0] = float("nan")
    weights, ids = routing.biased_grouped_topk(logits, torch.zeros(8), 3, 4, 2, True)
    assert weights[0].isnan().all() and ids[0].tolist() == [0, 1, 2]


def test_a_row_of_nan_names_experts_that_exist(randn: Randn) -> None:
    logits = randn(3, 6)
    logits[1] = float("nan")
    weights, ids = routing.topk_softmax(logits, 3, True)
    assert weights[1].isnan().all() and ids[1].sort().values.tolist() == [0, 1, 2]
    want = REFERENCE("topk_softmax")(logits[[0, 2]], 3, True)
    assert torch.equal(ids[[0, 2]], want[1])


def test_equal_scores_take_the_lower_expert() -> None:
    assert routing.topk_softmax(torch.zeros(1, 5), 3, False)[1].tolist() == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("num_tokens", "experts", "top_k", "size"), [(1, 4, 1, 4), (9, 5, 2, 4), (700, 3, 2, 16), (2, 40, 3, 16)]
)
def test_every_choice_lies_in_one_block_of_its_expert(num_tokens: int, experts: int, top_k: int, size: int) -> None:
    torch.manual_seed(num_tokens)
    ids = torch.rand(num_tokens, experts).topk(top_k).indices
    ids[0, 0] = -1
    blocks = expert_blocks.sort_by_expert(ids, experts, size)
    flat, seen = ids.flatten(), []
    used = int((blocks.experts >= 0).sum())
    for block, expert in enumerate(blocks.experts[:used].tolist()):
        choices = blocks.choices[block * size : (block + 1) * size]
        own = choices[choices < flat.numel()]
        assert len(own) > 0 and (flat[own.long()] == expert).all()
        seen += own.tolist()
    assert seen == [c for e in range(experts) for c in torch.nonzero(flat == e).flatten().tolist()]
    assert (blocks.experts[used:] == -1).all()


def inputs(
    randn: Randn, num_tokens: int, experts: int, hidden: int, inner: int, top_k: int, dtype: torch.dtype
) -> tuple:
    x = randn(num_tokens, hidden, dtype=dtype)
    w13, w2 = randn(experts, 2 * inner, hidden, dtype=dtype) / 4, randn(experts, hidden, inner, dtype=dtype) / 4
    return x, w13, w2, *REFERENCE("topk_softmax")(randn(num_tokens, experts), top_k, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("num_tokens", "experts", "hidden", "inner", "top_k"),
    [(1, 4, 7, 5, 2), (9, 3, 70, 66, 2), (5, 8, 24, 40, 3), (0, 4, 8, 8, 2)],
)
def test_fused_experts(
    randn: Randn, num_tokens: int, experts: int, hidden: int, inner: int, top_k: int, dtype: torch.dtype
) -> None:
    args = inputs(randn, num_tokens, experts, hidden, inner, top_k, dtype)
    torch.testing.assert_close(moe.fused_experts(*args), REFERENCE("fused_experts")(*args), **CLOSE[dtype])


MORE: dict[str, tuple[bool, bool, tuple[float, ...]]] = {
    "biases": (True, True, ()),
    "no-bias-behind": (True, False, ()),
    "clamped": (False, False, (1.702, 0.6)),
    "biases-clamped": (True, True, (1.3, 0.4)),
}
"""Whether there is a bias of the first product and one of the second, and the slope and limit of the activation."""


def more_of(randn: Randn, case: str, experts: int, hidden: int, inner: int, dtype: torch.dtype) -> tuple[object, ...]:
    first, second, swiglu = MORE[case]
    w13_bias, w2_bias = randn(experts, 2 * inner, dtype=dtype), randn(experts, hidden, dtype=dtype)
    return w13_bias if first else None, w2_bias if second else None, *swiglu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    ("num_tokens", "experts", "hidden", "inner", "top_k"), [(1, 4, 7, 5, 2), (9, 3, 70, 66, 2), (0, 4, 8, 8, 2)]
)
@pytest.mark.parametrize("case", MORE)
def test_experts_with_biases_and_clamps(
    randn: Randn, case: str, num_tokens: int, experts: int, hidden: int, inner: int, top_k: int, dtype: torch.dtype
) -> None:
    args = inputs(randn, num_tokens, experts, hidden, inner, top_k, dtype)
    args = *args, *more_of(randn, case, experts, hidden, inner, dtype)
    torch.testing.assert_close(moe.fused_experts(*args), REFERENCE("fused_experts")(*args), **CLOSE[dtype])
    assert registry.declined() == {}


@pytest.mark.nightly
@pytest.mark.parametrize("config", moe.SPACE.configs, ids=lambda config: str(dict(config.blocks)))
def test_fused_experts_with_every_configuration(
    randn: Randn, config: Config, force_configuration: Callable[..., None]
) -> None:
    args = inputs(randn, 150, 3, 72, 70, 2, torch.bfloat16)
    force_configuration(moe, config)
    torch.testing.assert_close(moe.fused_experts(*args), REFERENCE("fused_experts")(*args), **CLOSE[torch.bfloat16])


@pytest.mark.parametrize("case", ["plain", "biases-clamped"])
def test_a_nan_row_and_an_absent_expert_reach_no_other_row(randn: Randn, case: str) -> None:
    """A padding row may hold anything; an id that no expert here has (another rank's) adds nothing."""
    x, w13, w2, weights, ids = inputs(randn, 6, 4, 12, 10, 2, torch.float32)
    more = () if case == "plain" else more_of(randn, case, 4, 12, 10, torch.float32)
    x[5] = float("nan")
    ids[2, 1] = -1
    ids[3, 0] = 9
    got = moe.fused_experts(x, w13, w2, weights, ids, *more)
    want = REFERENCE("fused_experts")(x, w13, w2, weights, ids, *more)
    torch.testing.assert_close(got[:5], want[:5], **CLOSE[torch.float32])
    assert got[5].isnan().all()


def test_an_expert_of_nan_that_nobody_chose_reaches_nobody(randn: Randn) -> None:
    """Its weights lie right behind another's, whose last block of features is cut short."""
    x, w13, w2, weights, _ = inputs(randn, 5, 3, 12, 10, 2, torch.float32)
    ids = torch.tensor([[0, 2]] * 5)
    want = REFERENCE("fused_experts")(x, w13, w2, weights, ids)
    w13[1], w2[1] = float("nan"), float("nan")
    torch.testing.assert_close(moe.fused_experts(x, w13, w2, weights, ids), want, **CLOSE[torch.float32])
