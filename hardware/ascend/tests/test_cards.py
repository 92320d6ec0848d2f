"""Cards whose shapes the fused operator takes do run on it, in every layer and step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.matrix.bench import load_bench
from tests.matrix.cases import cards
from tests.matrix.hf_reference import build_reference
from tests.matrix.modes import compare

from trunnion.interfaces.runner import Mode

simulator = pytest.importorskip("ascend_simulator")
try:
    SIMULATION = simulator.simulation()
except LookupError:
    pytest.skip("operators are counted on the simulated device", allow_module_level=True)

FUSED, WRITES = "aclnnFusedInferAttentionScoreV4", "atb::ReshapeAndCache"
NAMES = ("llama-quick", "mistral-window-wide", "deepseek_v2-quick")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["decode", "mixed"])
def test_a_card_runs_on_the_fused_operator(name: str, mode: str, tmp_path: Path) -> None:
    (card,) = (card for card in cards() if card.name == name)
    reference = build_reference(card, torch.bfloat16, tmp_path)
    bench = load_bench(card, "ascend", "bfloat16", reference, execution=Mode.EAGER)
    steps, before = bench.host.steps, SIMULATION.calls.copy()
    compare(bench, mode, name)
    found = SIMULATION.calls - before
    layers = sum(len(group.layers) for group in bench.executor.kv_cache_spec().groups)
    # Steps without tokens have nothing to write or to attend to.
    assert found[FUSED] == found[WRITES] and found[FUSED] % layers == 0
    assert 5 < found[FUSED] // layers <= bench.host.steps - steps
    bench.close()
