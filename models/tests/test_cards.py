"""What the matrix assumes of cards: one quick card per family, names that say the family, an architecture it has."""

from __future__ import annotations

import importlib

import pytest

from trunnion import registry
from trunnion_models.card import Card

FAMILIES = {
    family.name: family for family in registry.model_families() if family.package.startswith("trunnion_models.")
}


def cards_of(family: str) -> tuple[Card, ...]:
    cards: tuple[Card, ...] = importlib.import_module(f"{FAMILIES[family].package}.card").CARDS
    return cards


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_one_quick_card(family: str) -> None:
    cards = cards_of(family)
    plain = [card for card in cards if card.pooling is None and not card.draft and not card.quantization]
    plain = [card for card in plain if not card.second_texts]
    assert [card.name for card in plain if card.quick] == (
        [f"{family}-quick"] if FAMILIES[family].architectures else []
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_that_pools_has_one_quick_card_more(family: str) -> None:
    quick = [card.name for card in cards_of(family) if card.quick and card.pooling is not None]
    assert quick == ([f"{family}-embedding"] if FAMILIES[family].pooling_architectures else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_with_more_types_of_tokens_than_one_has_one_quick_card_more(family: str) -> None:
    has_types = any(card.config.get("type_vocab_size", 1) > 1 for card in cards_of(family))
    quick = [card.name for card in cards_of(family) if card.quick and card.second_texts]
    assert quick == ([f"{family}-pairs"] if has_types else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_that_drafts_has_one_quick_card_more(family: str) -> None:
    quick = [card.name for card in cards_of(family) if card.quick and card.draft]
    drafts = FAMILIES[family].drafts or FAMILIES[family].draft_architectures
    assert quick == ([f"{family}-draft"] if drafts else [])


@pytest.mark.parametrize("family", FAMILIES)
def test_cards_name_an_architecture_of_their_family_and_say_what_for(family: str) -> None:
    for card in cards_of(family):
        owner = FAMILIES[family]
        known = owner.architectures if card.pooling is None else owner.pooling_architectures
        if card.draft_config is not None:
            assert set(card.draft_config["architectures"]) <= set(owner.draft_architectures)
        else:
            assert card.architecture in (owner.drafts if card.draft else known)
        assert card.notes


def test_card_names_are_unique() -> None:
    names = [card.name for family in FAMILIES for card in cards_of(family)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("looser", [{"fp32_tolerance": 2e-4}, {"bf16_ratio": 1.6}, {"fp32_tolerance": 0.0}])
def test_a_card_may_only_tighten(looser: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="is above"):
        Card(name="x", architecture="LlamaForCausalLM", config={}, **looser)


def test_a_card_does_not_outgrow_its_longest_request() -> None:
    with pytest.raises(ValueError, match="longer than max_model_len"):
        Card(name="x", architecture="LlamaForCausalLM", config={}, max_model_len=8, seq_lens=(9,))
