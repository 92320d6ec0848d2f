"""Checkpoints and executors on the simulated package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

# The simulated package is not installed, and lies beside its tests; the matrix lends cards and its host.
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent.parent)]

from tests.matrix.cases import quick_cards  # noqa: E402
from tests.matrix.hf_reference import build_reference  # noqa: E402
from trunnion_sim.hardware import SimHardware  # noqa: E402

from trunnion.interfaces.runner import Mode  # noqa: E402
from trunnion_models.card import Card  # noqa: E402

from .rig import Rig  # noqa: E402

# A quantised card rounds now and then the other way, and these tests compare steps to the last bits; the matrix
# captures and replays them.
QUICK = {card.name: card for card in quick_cards() if card.quantization is None}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Card], Path]:
    """The folder of a card's checkpoint in float32, built once."""
    folders: dict[str, Path] = {}

    def build(card: Card) -> Path:
        if card.name not in folders:
            folders[card.name] = build_reference(card, torch.float32, tmp_path_factory.mktemp(card.name)).folder
        return folders[card.name]

    return build


@pytest.fixture(params=QUICK.values(), ids=QUICK)
def card(request: pytest.FixtureRequest) -> Card:
    """One card per family."""
    found: Card = request.param
    return found


@pytest.fixture
def rigs(checkpoint: Callable[[Card], Path]) -> Iterator[Callable[..., Rig]]:
    """Makes rigs, all of them on the same weights, and closes them."""
    made: list[Rig] = []

    def make(card: Card, hardware: SimHardware | Mode = Mode.FULL, **options: int) -> Rig:
        hardware = SimHardware(hardware) if isinstance(hardware, Mode) else hardware
        made.append(Rig(card, checkpoint(card), hardware, **options))
        return made[-1]

    yield make
    for rig in made:
        rig.executor.close()


@pytest.fixture
def llama() -> Card:
    """The card of tests for which any model will do."""
    return QUICK["llama-quick"]
