"""What the choice of the matrix's sequences rests on: every router is found, and a near tie is seen as one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from trunnion_models.card import Card

from .cases import cards
from .hf_reference import random_model
from .routers import margin, near_ties, routers


class ThreeGroupsRouter(nn.Module):
    """Six experts in three groups."""

    def __init__(self, top_k: int, topk_group: int, bias: list[float] | None = None) -> None:
        super().__init__()
        self.top_k, self.num_group, self.topk_group = top_k, 3, topk_group
        if bias is not None:
            self.e_score_correction_bias = torch.tensor(bias)


def test_every_block_of_experts_has_a_router_that_is_found(card: Card) -> None:
    named = dict(random_model(card).named_modules())
    blocks = [name for name, module in named.items() if type(module).__name__.endswith("Experts")]
    assert len(routers(named.items())) == len(blocks)


@pytest.mark.parametrize(
    ("top_k", "topk_group", "scores", "expected"),
    [
        (2, 3, [9.0, 5.0, 4.5, 0.0, 1.0, 2.0], 0.5),
        (2, 1, [9.0, 1.0, 5.0, 5.0, 0.0, 0.0], 4.0),
        (1, 1, [9.0, 8.0, 1.0, 0.0, 0.0, 0.0], 1.0),
        (2, 2, [9.0, 0.0, 5.0, 3.0, 4.75, 4.5], 0.25),
    ],
    ids=["no-groups", "of-groups", "within-a-group", "of-groups-that-are-near"],
)
def test_the_margin_is_the_smallest_step_to_another_choice(
    top_k: int, topk_group: int, scores: list[float], expected: float
) -> None:
    assert margin(ThreeGroupsRouter(top_k, topk_group), torch.tensor([scores])).tolist() == [expected]


def test_rounding_decides_where_it_reaches_over_the_margin() -> None:
    card = next(card for card in cards() if card.name == "glm4_moe-quick")
    exact, other = random_model(card), random_model(card)
    ids = torch.arange(24).view(2, 12)
    assert not near_ties(exact, other, ids).any(), "nothing is rounded"
    (router,) = routers(other.named_modules()).values()
    with torch.no_grad():
        router.weight += 10 * torch.randn(router.weight.shape, generator=torch.Generator().manual_seed(0))
    assert near_ties(exact, other, ids).all()


def test_a_bias_moves_the_choice_and_groups_count_for_two_experts() -> None:
    router = ThreeGroupsRouter(1, 1, bias=[0.0, 0.0, 0.5, 0.5, 0.0, 0.0])
    scores = torch.tensor([[0.5, 0.9, 0.3, 0.25, 0.5, 0.5]])
    # Groups count for 1.4, 1.55 and 1.0; in the second one it is 0.8 against 0.75.
    found = margin(router, scores.logit())
    torch.testing.assert_close(found, torch.tensor([0.05]))
