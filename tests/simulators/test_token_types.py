"""Types of tokens on the simulated package: graphs read them at their address, and nothing of an earlier step's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.matrix.cases import cards
from tests.matrix.hf_reference import build_reference
from tests.matrix.host_double import Chunk
from trunnion_sim.hardware import SimHardware

from trunnion.contract import COUNT_FIELDS
from trunnion.errors import BatchRefused
from trunnion.interfaces.runner import Mode
from trunnion_models.card import Card

from .rig import Rig

PAIRS = next(card for card in cards() if card.second_texts)
STEPS = (((0, 20),), ((0, 5),), ((2, 14), (1, 9)), ((1, 9),), ((0, 12),), ((0, 3), (1, 4)), ((1, 1), (0, 23)))
"""(sequence, length) of the prompts of each step: pairs, single texts, and both side by side."""


@pytest.mark.parametrize("mode", Mode)
def test_steps_with_and_without_types_in_any_way_of_execution(mode: Mode, tmp_path: Path) -> None:
    """What the model's graphs were captured without, and what a step without types leaves of the one before."""
    reference = build_reference(PAIRS, torch.float32, tmp_path)
    rig = Rig(PAIRS, tmp_path, SimHardware(mode), max_decode_query_len=1)
    for step in STEPS:
        chunks = []
        for sequence, length in step:
            tokens = reference.sequences[sequence][:length]
            request = rig.host.add(tokens, token_types=PAIRS.token_types(sequence, length))
            chunks.append(Chunk(request, length, (length - 1,)))
        for (sequence, length), rows in zip(step, rig.host.step(chunks), strict=True):
            torch.testing.assert_close(rows[0], reference.logits[sequence, length - 1], rtol=0, atol=1e-5)
    typed = sum(any(PAIRS.token_types(*prompt) for prompt in step) for step in STEPS)
    counters = rig.executor.counters
    assert 0 < counters.token_type_steps == typed < len(STEPS)
    assert counters.replays == (0 if mode is Mode.EAGER else len(STEPS))
    rig.executor.close()


def test_a_model_without_types_has_no_such_input_and_refuses_them(llama: Card, rigs: Callable[..., Rig]) -> None:
    rig = rigs(llama)
    assert rig.executor.num_token_types == 0
    assert all("token_type_ids" not in buffers.fields for buffers in rig.executor.input_buffers())
    (request,) = rig.requests(1, 4)
    rig.host.step([Chunk(request, 3)])
    buffers = rig.executor.input_buffers()[0]
    buffers.counts[COUNT_FIELDS.index("has_token_types")] = 1
    with pytest.raises(BatchRefused, match=r"has_token_types: 1, expected 0: this model does not take token types"):
        rig.executor.execute_set(0)
