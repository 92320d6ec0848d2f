"""Two ranks on the simulated package: collectives are breaks, in full graphs too."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from trunnion_sim.hardware import SimHardware

from trunnion.interfaces.runner import Mode
from trunnion_models.card import Card

from .rig import Rig
from .test_steps import assert_close, decode_8_5_8

RANKS = 2


@pytest.mark.parametrize("mode", [Mode.PIECEWISE, Mode.FULL], ids=lambda mode: mode.value)
def test_both_ranks_replay_and_agree_with_one(
    mode: Mode, llama: Card, rigs: Callable[..., Rig], checkpoint: Callable[[Card], Path], tmp_path: Path
) -> None:
    """Every rank runs the same list of pieces and has the logits of a single rank. Ranks are threads here."""
    expected = decode_8_5_8(rigs(llama, Mode.EAGER))
    folder = checkpoint(llama)
    outputs: list[torch.Tensor | None] = [None] * RANKS
    made: list[Rig | None] = [None] * RANKS

    def serve(rank: int) -> None:
        store = f"file://{tmp_path / 'store'}"
        rig = Rig(llama, folder, SimHardware(mode), tp_rank=rank, tp_size=RANKS, tp_init_method=store)
        made[rank] = rig
        outputs[rank] = decode_8_5_8(rig)

    threads = [threading.Thread(target=serve, args=(rank,)) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rig, rows in zip(made, outputs, strict=True):
        assert rig is not None and rows is not None, "a rank failed"
        assert_close(rows, expected)
        assert rig.executor.counters.replays == 18 and not rig.executor.counters.eager
    # Per layer one after the attention and one after the MLP, one of the embedding, one of the logits.
    collectives = 2 * llama.config["num_hidden_layers"] + 2
    first = made[0]
    assert first is not None
    if mode is Mode.FULL:
        assert {full.graph.num_breaks for full in first.runner.steps.full.values()} == {collectives}
    groups = llama.config["num_hidden_layers"]
    assert {body.num_breaks for body, _ in first.runner.steps.bodies.values()} == {collectives - 1 + groups}
    for rig in made:
        assert rig is not None
        rig.executor.close()
