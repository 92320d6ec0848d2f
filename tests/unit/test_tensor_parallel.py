"""Ranks in processes of their own, joined by gloo, compute what one rank computes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

WORKER = Path(__file__).with_name("tensor_parallel_worker.py")
TIMEOUT_SECONDS = 120


def _run(size: int, folder: Path) -> list[dict[str, Any]]:
    outputs = [folder / f"rank{rank}of{size}.pt" for rank in range(size)]
    rendezvous = f"file://{folder / f'rendezvous{size}'}"
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(size), rendezvous, str(output)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, output in enumerate(outputs)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
    return [torch.load(output) for output in outputs]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one rank computes alone, then what each of two computes."""
    folder = tmp_path_factory.mktemp("ranks")
    return _run(1, folder) + _run(2, folder)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 4e-2)], ids=str)
def test_two_ranks_equal_one(dtype: torch.dtype, tolerance: float, ranks: list[dict[str, Any]]) -> None:
    """vocab 131, one KV head on two ranks, biases everywhere, steps of 15, 0 and 1 tokens."""
    one, *two = (rank[str(dtype)] for rank in ranks)
    for rank in two:
        assert rank["kv_heads"] == one["kv_heads"] == 1
        for tokens, (hidden, logits) in one["steps"].items():
            got_hidden, got_logits = rank["steps"][tokens]
            assert got_logits.shape == (2, tokens - tokens // 2, 131) and got_hidden.shape == (tokens, 12)
            for got, want in ((got_hidden, hidden), (got_logits, logits)):
                scale = want.float().abs().max().item() if want.numel() else 1.0
                torch.testing.assert_close(got.float(), want.float(), rtol=0, atol=tolerance * scale)
    for tokens in one["steps"]:
        for first, second in zip(two[0]["steps"][tokens], two[1]["steps"][tokens], strict=True):
            assert torch.equal(first, second), "the ranks disagree"
