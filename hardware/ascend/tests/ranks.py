"""Runs a module in a process for each rank, on simulated devices of one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT_SECONDS = 900


def run_ranks(module: str, *arguments: str, size: int) -> list[str]:
    """Run `module` once per rank, "RANK" of the arguments being its number, and return what the ranks printed.

    Raises:
        AssertionError: a rank failed; with what it printed.
    """
    path = os.pathsep.join((str(ROOT), *filter(None, sys.path)))
    command = [sys.executable, "-W", "ignore", "-m", "ascend_simulator", "--devices", str(size), module]
    ranks = [
        subprocess.Popen(
            [*command, *(str(rank) if argument == "RANK" else argument for argument in arguments)],
            cwd=ROOT,
            env=dict(os.environ, PYTHONPATH=path),
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
    problems = [out.strip() + err.strip() for rank, (out, err) in zip(ranks, outputs, strict=True) if rank.returncode]
    assert not problems, "\n".join(problems)
    return [out for out, _ in outputs]
