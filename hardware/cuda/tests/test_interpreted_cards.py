"""Model correctness with this package's own kernels inside captured graphs: cards with Triton interpreted.

The matrix as a whole would take most of an hour that way, so that it runs without Triton where there is no device; here
are the cards that between them use every operator, with one schedule of chunks and decodes. The others run nightly.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.matrix.conftest import quick_cards

QUICK = (
    "llama-quick",
    "gemma3-quick",
    "qwen2_5_vl-quick",
    "deepseek_v2-quick",
    "deepseek_v2-fp8-blocks",
    "deepseek_v2-w8a8",
    "qwen3_next-quick",
)
"""What is not here uses operators of these only: qwen2 and qwen3 those of llama, its quantised cards deepseek_v2's."""
ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_SECONDS = 280
if torch.cuda.get_device_name() != "simulated":
    pytest.skip("on a device the matrix runs with all kernels", allow_module_level=True)


def run_matrix(expression: str, *, timeout: float = TIMEOUT_SECONDS) -> str:
    """The last lines of a session of the matrix in which kernels are interpreted."""
    plugin = ("-p", "cuda_simulator.plugin", "--triton", "interpreted", "-p", "no:cacheprovider")
    command = (sys.executable, "-m", "pytest", "-q", "-x", "tests/matrix/test_matrix.py", "--hardware", "cuda", *plugin)
    result = subprocess.run((*command, "-k", expression), cwd=ROOT, capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert " passed" in result.stdout, f"nothing ran:\n{result.stdout}"
    return result.stdout


def test_cards_that_use_every_operator() -> None:
    """Decodes in full graphs, chunks between pieces; requests are preempted and start again."""
    output = run_matrix(f"({' or '.join(QUICK)}) and bf16-preempt-full")
    assert "Triton's kernels ran in its interpreter" in output and f"{len(QUICK)} passed" in output


@pytest.mark.nightly
@pytest.mark.parametrize("card", [card.name for card in quick_cards()])
def test_every_mode_of_a_card(card: str) -> None:
    run_matrix(f"{card} and full", timeout=3600)
