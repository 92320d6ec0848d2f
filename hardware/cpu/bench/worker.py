"""A process that serves SmolLM2 through the C++ host and measures rates on demand: one contestant of a comparison."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import torch
from host_rates import PREFILL_LEN, decode_rate, open_host, prefill_rate


class Worker:
    """Measures in a process of its own, with the kernels that `isa` names (TRUNNION_CPU_ISA; "": the best)."""

    def __init__(self, isa: str, threads: int, batches: Sequence[int]) -> None:
        environment = {**os.environ, "TRUNNION_CPU_ISA": isa}
        command = (sys.executable, __file__, str(threads), *map(str, batches))
        self._process: subprocess.Popen[str] = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def measure(self, what: int) -> float:
        """Tokens/s of decodes of a batch of `what`, or of one prefill where that is PREFILL_LEN."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def work(threads: int, batches: Sequence[int]) -> None:
    """Answer each line of the standard input with a rate."""
    torch.set_num_threads(threads)
    with open_host(batches) as host:
        for line in sys.stdin:
            rate: Any = prefill_rate(host) if int(line) == PREFILL_LEN else decode_rate(host, int(line))
            print(rate, flush=True)


if __name__ == "__main__":
    work(int(sys.argv[1]), [int(batch) for batch in sys.argv[2:]])
