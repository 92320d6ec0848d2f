"""Model correctness with this package's own kernels inside captured graphs: cards with Triton interpreted.

The matrix as a whole would take most of an hour that way, so that it runs without Triton where there is no device; here
are the cards that between them use every operator, with one schedule of chunks and decodes. The others run nightly.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.matrix.benches import Benches
from tests.matrix.cases import cases, quick_cards
from tests.matrix.modes import MODES, NEEDS_SHARED_BLOCKS, compare

from trunnion_models.card import Card

QUICK = (
    "llama-quick",
    "llama-w4a16",
    "gemma3-quick",
    "qwen2_5_vl-quick",
    "deepseek_v2-quick",
    "deepseek_v3-quick",
    "deepseek_v2-fp8-blocks",
    "deepseek_v2-w8a8",
    "qwen3_next-quick",
)
"""What is not here uses operators of these only: qwen2 and qwen3 those of llama, its quantised cards deepseek_v2's."""
simulator = pytest.importorskip("cuda_simulator")
if torch.cuda.get_device_name() != "simulated":
    pytest.skip("on a device the matrix runs with all kernels", allow_module_level=True)


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Benches]:
    found = Benches(tmp_path_factory)
    yield found
    found.close()


def check(card: str, mode: str, benches: Benches, dtype: str = "bf16", *, is_small: bool = False) -> int:
    """Run a card in graphs -> how many launches were interpreted; `is_small`: in no larger ones than the mode needs."""
    (case,) = (case for case in cases("cuda") if case.name == f"{card}-cuda-{dtype}-{mode}-full")
    launches = simulator.simulation().triton_launches
    before = launches.total()
    bench = benches.open(case, max_num_tokens=largest_preempt(case.card) if is_small else None)
    if mode in NEEDS_SHARED_BLOCKS and bench.host.has_recurrent:
        pytest.skip("a recurrent state holds one prefix only: there are no blocks to share")
    compare(bench, mode, case.name)
    return launches.total() - before


def largest_preempt(card: Card) -> int:
    """Tokens of the largest step of mode "preempt": each size that is captured takes the interpreter its time."""
    longest, *others = sorted(card.seq_lens, reverse=True)
    return max(longest // 2 + 3, sum(length - 2 for length in others))


@pytest.mark.parametrize("card", QUICK)
def test_cards_that_use_every_operator(card: str, benches: Benches) -> None:
    """Decodes in full graphs, chunks between pieces; requests are preempted and start again."""
    assert check(card, "preempt", benches, is_small=True) > 0


def test_latent_attention_that_the_library_refuses(benches: Benches) -> None:
    """In float32, on this package's own kernel."""
    before = simulator.simulation().triton_launches["_latent_kernel"]
    check("deepseek_v2-quick", "preempt", benches, "fp32", is_small=True)
    assert simulator.simulation().triton_launches["_latent_kernel"] > before


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("card", [card.name for card in quick_cards()])
def test_every_mode_of_a_card(card: str, mode: str, benches: Benches) -> None:
    check(card, mode, benches)
