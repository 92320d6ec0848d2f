"""Every card, in every mode, gives the logits of transformers on the same weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from trunnion_models.card import Card

from .benches import Benches
from .cases import Case, cards
from .hf_reference import build_reference, sensitivity
from .modes import NEEDS_SHARED_BLOCKS, compare


def test_logits_equal_the_reference(case: Case, benches: Benches) -> None:
    bench = benches.open(case)
    if case.mode in NEEDS_SHARED_BLOCKS and bench.host.has_recurrent:
        pytest.skip("a recurrent state holds one prefix only: there are no blocks to share")
    compare(bench, case.mode, case.name)


def test_types_matter_to_a_card_of_pairs(tmp_path: Path) -> None:
    """The last rows of the same tokens, all of type 0, are others."""
    pairs = [card for card in cards() if card.second_texts]
    assert pairs, "no card has pairs"
    for card in pairs:
        reference = build_reference(card, torch.float32, tmp_path / card.name)
        untyped = build_reference(dataclasses.replace(card, second_texts=()), torch.float32, tmp_path / "untyped")
        assert untyped.sequences == reference.sequences
        difference = (untyped.logits - reference.logits).abs() / reference.logits.abs().max()
        assert difference[0, card.second_texts[0] :].max() > 0.01
        assert difference[0, : card.second_texts[0]].max() == 0


def test_first_token_matters_to_the_third(card: Card, tmp_path: Path) -> None:
    """A card whose attention does nothing would prove nothing."""
    assert sensitivity(build_reference(card, torch.float32, tmp_path)) > 0.01
