"""Every family cut over ranks: each rank returns the logits of transformers, whole vocabulary included."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trunnion import registry
from trunnion.interfaces.hardware import Hardware
from trunnion_models.card import Card

from .adapted_cards import ONE_RANK
from .cases import cards, load_hardware
from .conftest import unsupported
from .hf_reference import Reference, build_reference

TESTS = Path(__file__).resolve().parent.parent
TIMEOUT_SECONDS = 280
CARDS_AT_ONCE = 8
"""Processes start once for so many cards."""
QUICK = [card for card in cards() if card.quick]
PARTS = [QUICK[first : first + CARDS_AT_ONCE] for first in range(0, len(QUICK), CARDS_AT_ONCE)]


def ranks_fit(card: Card, size: int) -> bool:
    """Whether the card's heads can be cut: query heads, and a delta net's key heads, are not shared between ranks."""
    return card.name not in ONE_RANK and all(
        card.config.get(name, size) % size == 0 for name in ("num_attention_heads", "linear_num_key_heads")
    )


def save_reference(reference: Reference) -> None:
    """For the ranks' processes (`tensor_parallel_worker.py`)."""
    saved = (reference.logits, reference.sequences, reference.positions, reference.token_ids)
    torch.save(saved, reference.folder / "reference.pt")


def num_devices(hardware: Hardware) -> float:
    """Devices that ranks of one machine can have; the host has one for everybody."""
    return math.inf if hardware.uses_host_memory else torch.get_device_module(hardware.device_type).device_count()


# 4 ranks: more than the KV heads of most cards, and 131 tokens divide over neither.
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("part", PARTS, ids=lambda part: f"{part[0].name}-to-{part[-1].name}")
def test_every_rank_returns_the_logits_of_the_reference(
    part: list[Card], size: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    choice = str(pytestconfig.getoption("--hardware"))
    if (count := num_devices(registry.hardware(load_hardware(choice)))) < size:
        pytest.skip(f"{size} ranks need a device each, and there are {count}")
    listed = unsupported(registry.hardware(load_hardware(choice)).name)
    fitting = [card for card in part if ranks_fit(card, size) and card.name not in listed]
    problems = problems_of_ranks(fitting, size, tmp_path, choice)
    assert not problems, "\n".join(problems)


def problems_of_ranks(cards: list[Card], size: int, folder: Path, hardware: str) -> list[str]:
    """What processes say of which each is a rank and runs all `cards` in turn: one text per rank that failed."""
    for card in cards:
        save_reference(build_reference(card, torch.float32, folder / card.name, ranks=size))
    command = [sys.executable, "-m", f"{TESTS.name}.matrix.tensor_parallel_worker", hardware]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(size), str(folder)],
            cwd=TESTS.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [rank.communicate(timeout=TIMEOUT_SECONDS) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [out.strip() or err.strip() for rank, (out, err) in zip(ranks, outputs, strict=True) if rank.returncode]
