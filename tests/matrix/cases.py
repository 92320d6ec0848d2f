"""The cells of the matrix: every card of every family, on one hardware package, in every mode."""

from __future__ import annotations

import importlib
import itertools
from dataclasses import dataclass
from pathlib import Path

from trunnion import registry
from trunnion.interfaces.runner import Mode
from trunnion_models.card import Card

from .adapted_cards import ADAPTED, ADAPTER, PER_REQUEST
from .modes import modes_of

SERVED = "served"
"""The mode of cases that run through the C++ host instead of the host double."""
SHORT = {"float32": "fp32", "bfloat16": "bf16"}
"""Dtypes of the matrix, and how test ids call them."""


@dataclass(frozen=True)
class Case:
    """One cell of the matrix."""

    card: Card
    hardware: str
    dtype: str
    mode: str
    execution: Mode | None = None
    """How steps are executed, where the hardware has several ways."""
    family: str = ""

    @property
    def name(self) -> str:
        execution = "" if self.execution is None else f"-{self.execution.value}"
        return f"{self.card.name}-{self.hardware}-{SHORT[self.dtype]}-{self.mode}{execution}"

    @property
    def fixture(self) -> str:
        """What a test that runs the case calls it."""
        if self.mode != SERVED:
            return "case"
        card = self.card
        return "served_case" if card.pooling is None and not card.whole_prompts else "embedded_case"

    @property
    def keys(self) -> tuple[str, ...]:
        """How a package's `UNSUPPORTED` may name this case, alone or with others."""
        card, dtype = self.card.name, f"{self.card.name}-{SHORT[self.dtype]}"
        return card, dtype, f"{dtype}-{self.mode}"


def cards() -> list[Card]:
    """The cards of every model family and of the adapter, quick ones first."""
    return [card for _, card in _named_cards()]


def _named_cards() -> list[tuple[str, Card]]:
    """(family, card), quick ones first."""
    found = [
        (family.name, card)
        for family in registry.model_families()
        for card in importlib.import_module(f"{family.package}.card").CARDS
    ]
    found += [(ADAPTER, card) for card in ADAPTED]
    return sorted(found, key=lambda pair: not pair[1].quick)


def cases(hardware: str) -> list[Case]:
    """All cells, those of one card, dtype and execution side by side. Hosts are served as the package executes."""
    executions = registry.hardware(hardware).execution_modes or (None,)
    return [
        Case(card, hardware, dtype, mode, execution, family)
        for family, card in _named_cards()
        for dtype in (SHORT if card.bf16 else ("float32",))
        for execution, mode in (*itertools.product(executions, modes_of(card)), (None, SERVED))
        # A draft is served with its target (test_draft.py).
        if mode != SERVED or not card.draft
    ]


def quick_cards() -> list[Card]:
    """The cards that run with every change, whose tokens may come in any pieces, alone, and whose decodes have full
    graphs: no drafts, no encoders, no modules that run once per request."""
    found = (card for card in cards() if card.quick and card.architecture not in PER_REQUEST)
    return [card for card in found if not card.draft and not card.whole_prompts]


def load_hardware(choice: str) -> str:
    """The name of the package that `--hardware` picks; one that is given by its folder is loaded from there."""
    return registry.load_hardware_from(Path(choice)).name if Path(choice).is_dir() else choice
