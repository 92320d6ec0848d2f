"""Models cut over ranks: torch_npu's process group over a simulated HCCL, one process and one device each.

What is real: the calls of HCCL that torch_npu makes, that they stand in graphs, their order on the stream. HCCL is not.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hardware.ascend.tests.ranks import run_ranks
from tests.matrix.cases import cards, quick_cards
from tests.matrix.hf_reference import build_reference
from tests.matrix.test_tensor_parallel import ranks_fit, save_reference

from trunnion.config import DTYPES
from trunnion_ascend.unsupported import UNSUPPORTED

simulator = pytest.importorskip("ascend_simulator")
try:
    simulator.simulation()
except LookupError:
    pytest.skip("tests/matrix/test_tensor_parallel.py runs on real devices", allow_module_level=True)

SIZE = 2
CUT = {"llama-quick": "bfloat16", "deepseek_v2-quick": "bfloat16", "qwen3_next-quick": "float32"}
"""Fused attention with its updates beside collectives in one graph, latents and experts, delta nets."""


def test_every_rank_returns_the_logits_of_the_reference(tmp_path: Path) -> None:
    for name, dtype in CUT.items():
        (card,) = (card for card in cards() if card.name == name)
        reference = build_reference(card, DTYPES[dtype], tmp_path / name)
        saved = dtype, reference.logits, reference.own_error, reference.sequences
        torch.save(saved, tmp_path / name / "reference.pt")
    for printed in run_ranks("hardware.ascend.tests.rank_worker", "RANK", str(SIZE), str(tmp_path), size=SIZE):
        replays, updates = map(int, printed.splitlines()[-1].split())
        assert replays > 100 and updates > 10, f"{replays} replays of graphs and {updates} updates of their tasks"


@pytest.mark.nightly
def test_every_family_is_cut_as_the_matrix_cuts_it(tmp_path: Path) -> None:
    """All quick cards in float32."""
    for card in quick_cards():
        if ranks_fit(card, SIZE) and card.name not in UNSUPPORTED:
            save_reference(build_reference(card, torch.float32, tmp_path / card.name, ranks=SIZE))
    run_ranks("tests.matrix.tensor_parallel_worker", "ascend", "RANK", str(SIZE), str(tmp_path), size=SIZE)
