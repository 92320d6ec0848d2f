"""Caches that leave and come back by layers: a host of two levels on every kind of model, and on what can go wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.matrix.cases import quick_cards
from tests.matrix.hf_reference import build_reference

from trunnion_models.card import Card

from .conftest import HostRun, run_host

INSIDE = """
import ctypes, sys
host = ctypes.CDLL(sys.argv[1])
arguments = [argument.encode() for argument in sys.argv[1:]]
sys.exit(host.two_level_main(len(arguments), (ctypes.c_char_p * len(arguments))(*arguments)))
"""
CARDS = {card.name: card for card in quick_cards()}
STEPS = 4
"""Of each run, with events, that come to their end: saved, restored, with NULL entries, without tokens."""


@pytest.fixture(scope="module")
def two_level(build: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Card], HostRun]:
    """Run the host of two levels on a card's tiny model, inside a Python process."""

    def run(card: Card) -> HostRun:
        folder = build_reference(card, torch.float32, tmp_path_factory.mktemp(card.name)).folder
        command = [sys.executable, "-c", INSIDE, str(build / "libtwo_level_library.so"), str(folder), "cpu"]
        return run_host(command, env={**os.environ, "OMP_NUM_THREADS": "1"})

    return run


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_what_was_saved_by_layers_continues_elsewhere(two_level: Callable[[Card], HostRun], card: Card) -> None:
    """Bit for bit the same text, though each layer's cache comes only after the layer before it has written."""
    run = two_level(card)
    assert run.returncode == 0, run.stderr
    assert run.of("kv_event_steps") == [[str(STEPS)]]


@pytest.mark.parametrize("model", ["null", "null:window=0,layers=5", "null:layers=3,recurrent=1,csr=1"])
def test_the_executor_without_python_has_them_too(build: Path, model: str) -> None:
    run = run_host([str(build / "two_level"), model, "null"])
    assert run.returncode == 0, run.stderr
    assert run.of("kv_event_steps") == [[str(STEPS)]]
